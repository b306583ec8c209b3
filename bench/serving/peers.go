package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

const brotliStatic = "/usr/lib/nginx/modules/ngx_http_brotli_static_module.so" // where Debian has it

// A peer is the configuration of nginx or Caddy.
type peer struct {
	name      string
	Sendfile  bool // nginx's
	NoPush    bool // nginx's tcp_nopush
	Folder    string
	Work      string // for what it writes
	Address   string
	TLS       certificate
	H2C       bool
	Root      bool
	OpenFiles int
	Cached    int // entries of open_file_cache
	Module    string

	// What Larder's answers have, taken from them.
	Fields   [][2]string         // that every file's answer has
	Missing  [][2]string         // that every 404 has
	Text     string              // the 404's body
	Plain    string              // and its type
	Removed  []string            // of a file's fields, those that a 404 has not; for Caddy
	Types    map[string][]string // extensions by type
	Releases []releaseFields
}

// releaseFields are the fields that are the same for all files of a release.
type releaseFields struct {
	Prefix string
	Fields [][2]string
}

// copied are the fields that the peers set from Larder's answers; the others they
// make by themselves.
var (
	copied   = []string{"Access-Control-Allow-Origin", "Cache-Control", "Cross-Origin-Resource-Policy", "Timing-Allow-Origin", "X-Content-Type-Options", "Accept-Ranges"}
	ofFolder = []string{"Cache-Tag", "Surrogate-Key"}
)

// describe asks Larder for what the peers have to answer too.
func describe(conn *connection, files []file) (peer, error) {
	p := peer{Types: map[string][]string{}}
	missing, err := conn.ask(request{Method: http.MethodGet, Path: missingPath(0)}, validators{}, false, chrome)
	if err != nil {
		return p, err
	}
	if missing.status != http.StatusNotFound {
		return p, fmt.Errorf("larder answers %d to %s, where nothing is", missing.status, missingPath(0))
	}
	p.Missing, p.Text, p.Plain = fieldsOf(missing.header, append(copied[:len(copied):len(copied)], "Vary")), string(missing.body), missing.header.Get("Content-Type")
	seen := map[string]bool{}
	for _, f := range files {
		extension := strings.TrimPrefix(path.Ext(f.Path), ".")
		if !slices.Contains(p.Types[f.Type], extension) {
			p.Types[f.Type] = append(p.Types[f.Type], extension)
		}
		prefix, _, _ := f.release()
		if seen[prefix] {
			continue
		}
		seen[prefix] = true
		a, err := conn.ask(request{Method: http.MethodGet, Path: f.Path}, validators{}, false, chrome)
		if err != nil {
			return p, err
		}
		if p.Fields == nil {
			p.Fields = fieldsOf(a.header, copied)
		}
		p.Releases = append(p.Releases, releaseFields{prefix, fieldsOf(a.header, ofFolder)})
	}
	return p, nil
}

func fieldsOf(h http.Header, names []string) [][2]string {
	var fields [][2]string
	for _, name := range names {
		if value := h.Get(name); value != "" {
			fields = append(fields, [2]string{name, value})
		}
	}
	return fields
}

// missingPath is the i-th path that nothing is at.
func missingPath(i int) string { return fmt.Sprintf("/ajax/libs/nothing/1.0.%d/missing.js", i) }

// nginxConfiguration is the quickest that we know: no logs, nothing checked again,
// a location of fixed text for each release, so that its fields cost no pattern.
var nginxConfiguration = template.Must(template.New("").Parse(`daemon off;
load_module {{.Module}};
worker_processes 1;
worker_rlimit_nofile {{.OpenFiles}};
pid {{.Work}}/nginx.pid;
error_log stderr crit;
{{if .Root}}user root;{{end}}
events { worker_connections 4096; multi_accept on; }
http {
	access_log off;
	server_tokens off;
	client_body_temp_path {{.Work}}/body;
	proxy_temp_path {{.Work}}/proxy;
	fastcgi_temp_path {{.Work}}/fastcgi;
	uwsgi_temp_path {{.Work}}/uwsgi;
	scgi_temp_path {{.Work}}/scgi;
	default_type application/octet-stream;
	types {
	{{- range $type, $extensions := .Types}}
		"{{$type}}"{{range $extensions}} {{.}}{{end}};
	{{- end}}
	}
	types_hash_max_size 4096;
	map $sent_http_content_type $confined { # an empty one is not sent
	{{- range .Documents}}
		"{{.}}" "{{$.Confined}}";
	{{- end}}
	}
	sendfile {{if .Sendfile}}on{{else}}off{{end}};
	tcp_nopush {{if .NoPush}}on{{else}}off{{end}};
	tcp_nodelay on;
	output_buffers 1 256k;
	keepalive_requests 1000000000;
	keepalive_timeout 1h;
	open_file_cache max={{.Cached}} inactive=1d;
	open_file_cache_valid 1d;
	open_file_cache_errors on;
	gzip off;
	gzip_static on;
	brotli_static on;
	gzip_vary on;
	max_ranges 0; # it says Accept-Ranges where there is no coding only; so by hand, below
	server {
		listen {{.Address}}{{if .TLS.Cert}} ssl http2{{else if .H2C}} http2{{end}} backlog=4096;
		{{- if .TLS.Cert}}
		ssl_certificate {{.TLS.Cert}};
		ssl_certificate_key {{.TLS.Key}};
		ssl_protocols TLSv1.2 TLSv1.3;
		ssl_prefer_server_ciphers on;
		ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384;
		ssl_session_cache shared:tls:10m;
		{{- end}}
		http2_max_requests 1000000000;
		root {{.Folder}};
		location / { error_page 404 = @missing; }
		location @missing {
			types {}
			default_type "{{.Plain}}";
			{{- range .Missing}}
			add_header {{index . 0}} "{{index . 1}}" always;
			{{- end}}
			return 404 "{{.Text}}";
		}
		{{- $fields := .Fields}}
		{{- range .Releases}}
		location ^~ {{.Prefix}} {
			error_page 404 = @missing;
			{{- range $fields}}
			add_header {{index . 0}} "{{index . 1}}";
			{{- end}}
			{{- range .Fields}}
			add_header {{index . 0}} "{{index . 1}}";
			{{- end}}
			add_header Content-Security-Policy $confined;
		}
		{{- end}}
	}
}
`))

var caddyConfiguration = template.Must(template.New("").Parse(`{
	admin off
	auto_https off
	log {
		output discard
	}
	servers {
		protocols h1 h2{{if .H2C}} h2c{{end}}
	}
}
{{if .TLS.Cert}}https{{else}}http{{end}}://{{.Address}} {
	{{- if .TLS.Cert}}
	tls {{.TLS.Cert}} {{.TLS.Key}}
	{{- end}}
	root * {{.Folder}}
	header {
		-Server
		{{- range .Fields}}
		{{index . 0}} "{{index . 1}}"
		{{- end}}
	}
	{{- if .Releases}}
	@release path_regexp release ^/ajax/libs/([^/]+)/([^/]+)/
	{{- range (index .Releases 0).Fields}}
	header @release {{index . 0}} "{{index . 1}}"
	{{- end}}
	{{- end}}
	{{- range $type, $extensions := .Types}}
	@{{index $extensions 0}} path{{range $extensions}} *.{{.}}{{end}}
	header @{{index $extensions 0}} Content-Type "{{$type}}"
	{{- if $.Confines $type}}
	header @{{index $extensions 0}} Content-Security-Policy "{{$.Confined}}"
	{{- end}}
	{{- end}}
	file_server {
		precompressed br gzip
	}
	handle_errors {
		header {
			-Server
			{{- range .Removed}}
			-{{.}}
			{{- end}}
			{{- range .Missing}}
			{{index . 0}} "{{index . 1}}"
			{{- end}}
			Content-Type "{{.Plain}}"
		}
		respond ` + "`{{.Text}}`" + ` 404
	}
}
`))

// Confined is the policy of published documents.
func (p peer) Confined() string { return "sandbox allow-scripts" }

// Confines reports whether it is for that type.
func (p peer) Confines(contentType string) bool {
	essence, _, _ := strings.Cut(contentType, ";")
	return essence == "text/html" || strings.HasSuffix(essence, "/xml") || strings.HasSuffix(essence, "+xml")
}

// Documents are the types that it is for.
func (p peer) Documents() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.Types)), func(t string) bool { return !p.Confines(t) })
}

// nginxes are the three configurations, of which the best one counts.
var nginxes = []peer{
	{name: "nginx, sendfile", Sendfile: true},
	{name: "nginx, tcp_nopush", Sendfile: true, NoPush: true},
	{name: "nginx, no sendfile"},
}

// startNginx starts one of the configurations with what all have in common.
func startNginx(ctx context.Context, common, one peer) (*server, error) {
	p := common
	p.name, p.Sendfile, p.NoPush = one.name, one.Sendfile, one.NoPush
	p.Root, p.Module, p.OpenFiles = os.Getuid() == 0, brotliStatic, openFiles()
	p.Cached = max(64, min(300_000, p.OpenFiles-6000)) // the rest is for connections
	program, err := findCommand("nginx")
	if err != nil {
		return nil, err
	}
	return p.start(ctx, nginxConfiguration, "nginx.conf", func(file string) *exec.Cmd {
		return exec.Command(program, "-p", p.Work, "-c", file)
	})
}

// startCaddy starts Caddy. Fields that name a release are made from the path.
func startCaddy(ctx context.Context, common peer) (*server, error) {
	p := common
	p.name = "caddy"
	if len(p.Releases) > 0 {
		parts := strings.Split(p.Releases[0].Prefix, "/")
		var fields [][2]string
		for _, f := range p.Releases[0].Fields {
			value := strings.NewReplacer(parts[3], "{re.release.1}", parts[4], "{re.release.2}").Replace(f[1])
			fields = append(fields, [2]string{f[0], value})
		}
		p.Releases = []releaseFields{{p.Releases[0].Prefix, fields}}
		for _, f := range slices.Concat(p.Fields, fields) {
			if !slices.ContainsFunc(p.Missing, func(m [2]string) bool { return m[0] == f[0] }) {
				p.Removed = append(p.Removed, f[0])
			}
		}
	}
	return p.start(ctx, caddyConfiguration, "Caddyfile", func(file string) *exec.Cmd {
		cmd := exec.Command("caddy", "run", "--adapter", "caddyfile", "--config", file)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "HOME="+p.Work, "XDG_DATA_HOME="+p.Work, "XDG_CONFIG_HOME="+p.Work)
		return cmd
	})
}

func (p *peer) start(ctx context.Context, configuration *template.Template, name string, command func(file string) *exec.Cmd) (*server, error) {
	var err error
	if p.Address, err = freeAddress(); err != nil {
		return nil, err
	}
	p.Work, err = os.MkdirTemp(p.Work, "peer-")
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := configuration.Execute(&text, p); err != nil {
		return nil, err
	}
	file := filepath.Join(p.Work, name)
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	return launch(ctx, p.name, command(file), p.Address, serverCore, p.TLS.Cert != "")
}
