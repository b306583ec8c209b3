// preserve 1.1.0
import { jar } from "./jar.mjs";

export const version = "1.1.0";

export function preserve(fruit) {
	return jar(fruit);
}
