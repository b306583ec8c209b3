import room from "hall"

const seen = {}
window.seen = seen
seen.room = room
seen.script = window.gallery
seen.data = (await (await fetch("document.json")).json()).pages
// As a viewer does for which a worker of another origin is no way.
const wrapper = new Blob([`importScripts(${JSON.stringify(new URL("worker.js", import.meta.url))})`], { type: "text/javascript" })
const worker = new Worker(URL.createObjectURL(wrapper))
seen.worker = await new Promise((resolve, reject) => {
  worker.onmessage = e => resolve(e.data)
  worker.onerror = () => reject(new Error("the worker failed"))
  worker.postMessage(20)
})
const mark = document.querySelector("img")
await mark.decode()
const canvas = document.querySelector("canvas")
canvas.getContext("2d").drawImage(mark, 0, 0)
seen.picture = canvas.toDataURL().slice(0, 15)
document.querySelector("dialog").showModal()
seen.dialog = document.querySelector("dialog").open
await document.fonts.load('20px "Gallery Marks"')
seen.font = document.fonts.check('20px "Gallery Marks"')
seen.style = getComputedStyle(document.querySelector("h1")).borderBottomWidth
seen.done = true
