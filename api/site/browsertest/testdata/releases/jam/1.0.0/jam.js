globalThis.jam = { version: "1.0.0" };
