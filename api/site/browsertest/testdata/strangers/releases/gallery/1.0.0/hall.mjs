import { room } from "./room.mjs"
window.hall = `hall with ${room}`
export default room
