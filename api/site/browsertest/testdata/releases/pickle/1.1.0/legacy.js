globalThis.pickleLegacy = true;
