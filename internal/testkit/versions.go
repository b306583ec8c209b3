package testkit

import (
	"fmt"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// VersionedScript returns a script of 10 KB that compresses to half, and of which other versions differ in their last line.
func VersionedScript(version string) string {
	var text strings.Builder
	for i := range 200 {
		sum := kvstore.Sum([]byte{byte(i)})
		fmt.Fprintf(&text, "function f%x() { return %d; }\n", sum[:4], sum[5])
	}
	return text.String() + "window.version = '" + version + "';\n"
}
