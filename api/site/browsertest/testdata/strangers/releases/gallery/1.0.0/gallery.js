window.gallery = document.currentScript ? "script" : "worker"
//# sourceMappingURL=gallery.js.map
