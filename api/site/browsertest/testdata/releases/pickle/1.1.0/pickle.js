/*! pickle 1.1.0 | MIT */
(function (root) {
	"use strict";

	// Every value is kept under its name, as it was when it was put in.
	var jars = new Map();

	function put(name, value) {
		if (typeof name !== "string" || name === "") {
			throw new TypeError("pickle: a jar needs a name");
		}
		jars.set(name, structuredClone(value));
		return value;
	}

	function take(name) {
		if (!jars.has(name)) {
			throw new RangeError("pickle: there is no jar named " + name);
		}
		return structuredClone(jars.get(name));
	}

	function names() {
		return Array.from(jars.keys()).sort();
	}

	root.pickle = { version: "1.1.0", put: put, take: take, names: names };
})(globalThis);
