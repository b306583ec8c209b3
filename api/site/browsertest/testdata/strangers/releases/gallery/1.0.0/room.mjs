export const room = "a room"
