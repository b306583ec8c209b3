// Command world is the world of the story in run.sh.
package main

import "github.com/larder-cdn/larder/docs/story/world"

func main() { world.Main() }
