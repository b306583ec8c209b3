package packages

import (
	"strings"
	"testing"
)

func TestDefaultFile(t *testing.T) {
	tests := []struct{ filename, files, want string }{
		{"jquery.min.js", "jquery.js jquery.min.js", "jquery.min.js"},
		{"", "a.js", ""},
		{"a.js", "b.css c.map", ""},
		{"chart.min.js", "chart.js chart.umd.min.js helpers.js", "chart.js"},
		{"js/app.min.js", "app.min.js lib/app.min.js", "app.min.js"},
		{"vue.min.js", "vue.global.js vue.global.prod.js vue.esm-browser.js", "vue.global.js"},
		{"Moment.min.js", "moment.min.js locale/af.js", "moment.min.js"},
		{"x.js", "", ""},
	}
	for _, tt := range tests {
		if got := DefaultFile(tt.filename, strings.Fields(tt.files)); got != tt.want {
			t.Errorf("%q among %s: got %q, want %q", tt.filename, tt.files, got, tt.want)
		}
	}
}
