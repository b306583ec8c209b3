onmessage = e => postMessage(e.data + 1)
