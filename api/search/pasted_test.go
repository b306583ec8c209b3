package search

import (
	"strings"
	"testing"
)

// What people paste finds the library that it is about, first.
func TestPasted(t *testing.T) {
	x := indexOf(t, append(libraries(t),
		Document{Name: "popper.js", AlternativeNames: []string{"@popperjs/core"}},
		Document{Name: "core"}, Document{Name: "dist"}, Document{Name: "npm"}))
	for _, test := range []struct{ text, want string }{
		{"https://cdnjs.cloudflare.com/ajax/libs/jquery/3.7.1/jquery.min.js", "jquery"},
		{"//cdnjs.cloudflare.com/ajax/libs/moment.js/2.30.1/moment.min.js", "moment.js"},
		{"cdn.example.com/ajax/libs/font-awesome/6.7.2/css/all.min.css", "font-awesome"},
		{"/ajax/libs/Chart.js/4.4.1/chart.umd.min.js", "Chart.js"},
		{"https://cdn.jsdelivr.net/npm/bootstrap@5.3.3/dist/css/bootstrap.min.css", "bootstrap"},
		{"https://cdn.jsdelivr.net/npm/@popperjs/core@2.11.8/dist/umd/popper.min.js", "popper.js"},
		{"https://cdn.jsdelivr.net/gh/twbs/bootstrap@5.3.3/dist/js/bootstrap.js", "bootstrap"},
		{"https://unpkg.com/vue@3/dist/vue.global.js", "vue"},
		{"https://unpkg.com/react", "react"},
		{"https://esm.sh/react-dom@18.2.0/client", "react-dom"},
		{"https://ajax.googleapis.com/ajax/libs/jqueryui/1.13.2/jquery-ui.min.js", "jqueryui"},
		{"https://code.jquery.com/jquery-3.7.1.slim.min.js", "jquery"},
		{"https://stackpath.bootstrapcdn.com/bootstrap/4.5.2/js/bootstrap.bundle.min.js", "bootstrap"},
		{"https://www.npmjs.com/package/axios", "axios"},
		{"https://github.com/moment/luxon.git", "luxon"},
		{"https://cdnjs.com/libraries/d3", "d3"},
		{`<script src="https://cdn.jsdelivr.net/npm/axios/dist/axios.min.js"></script>`, "axios"},
		{`<link rel="stylesheet" href='https://unpkg.com/leaflet@1.9.4/dist/leaflet.css' integrity="sha256-x`, "leaflet"},
		{`<SCRIPT SRC=https://unpkg.com/dayjs@1/dayjs.min.js>`, "dayjs"},
		{"npm install axios", "axios"},
		{"$ npm i --save-dev select2@4", "select2"},
		{"yarn add @popperjs/core", "popper.js"},
		{"yarn global add chai", "chai"},
		{"pnpm add three", "three.js"},
		{"bun add vue-router@4", "vue-router"},
		{"libman install knockout@3.5.1", "knockout"},
		{"import axios from 'axios'", "axios"},
		{`import {Chart} from "chart.js/auto";`, "Chart.js"},
		{"const moment = require('moment')", "moment.js"},
		{`import * as THREE from "https://unpkg.com/three@0.160.0/build/three.module.js"`, "three.js"},
		{"bootstrap.bundle.min.js", "bootstrap"},
		{"jquery-3.7.1.min.js", "jquery"},
		{"leaflet.css", "leaflet"},
		{"select2.full.min.js", "select2"},
		{"vue.global.prod.js", "vue"},
		{"mustache.min.js.map", "mustache.js"},
		{`<script type="importmap">{"imports": {"vue": "https://unpkg.com/vue@3/dist/vue.esm-browser.js"}}</script>`, "vue"},
		{`@import url("https://unpkg.com/leaflet@1.9.4/dist/leaflet.css");`, "leaflet"},
		{"composer require twbs/bootstrap", "bootstrap"},
		{"bun add qwrtzpsdfg axios", "axios"},
		// What is typed stays as it is.
		{"npm", "npm"},
		{"three.js", "three.js"},
		{"core", "core"},
	} {
		if got := find(t, x, Query{Text: test.text}); len(got) == 0 || got[0] != test.want {
			t.Errorf("%s: %v, want %s first", test.text, got[:min(len(got), 4)], test.want)
		}
	}
	for _, nothing := range []string{
		"https://example.com/", "https://example.com/qwrtzpsdfg/1.0.0/qwrtzpsdfg.js", "npm install qwrtzpsdfg", "npm install", "qwrtzpsdfg.min.js",
		"<script src=", "import '",
	} {
		if got := find(t, x, Query{Text: nothing}); len(got) > 2 {
			t.Errorf("%s finds %v", nothing, got)
		}
	}
	for _, long := range []string{strings.Repeat("a-", 2000) + ".js", "https://x/" + strings.Repeat("a.", 1500) + "js", "npm i " + strings.Repeat("@/", 1500)} {
		if got := guessNames(long); len(got) > maxMeanings {
			t.Errorf("%d meanings", len(got))
		}
	}
}
