// A jar holds what is put into it and cannot be changed.
export function jar(content) {
	return Object.freeze({ content });
}
