package lane

import (
	"strings"
	"testing"
)

// chrome is what a browser sends for a script.
const chrome = "GET /ajax/libs/jquery/3.7.1/jquery.min.js HTTP/1.1\r\n" +
	"Host: cdn.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"sec-ch-ua-platform: \"Linux\"\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n" +
	"sec-ch-ua: \"Chromium\";v=\"130\", \"Google Chrome\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n" +
	"sec-ch-ua-mobile: ?0\r\n" +
	"Accept: */*\r\n" +
	"Sec-Fetch-Site: cross-site\r\n" +
	"Sec-Fetch-Mode: no-cors\r\n" +
	"Sec-Fetch-Dest: script\r\n" +
	"Referer: https://www.example.com/articles/2024/11/on-libraries\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: en-GB,en-US;q=0.9,en;q=0.8\r\n" +
	"\r\n"

func BenchmarkParse(b *testing.B) {
	for _, head := range []struct{ name, text string }{
		{"browser", chrome},
		{"again", strings.Replace(chrome, "\r\n\r\n", "\r\nIf-None-Match: \"q1Rs0nJ6wZXOG2oQmEYkXw.br.m5lV6Kyn1Zs\"\r\nIf-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\n\r\n", 1)},
		{"least", "GET /ajax/libs/jquery/3.7.1/jquery.min.js HTTP/1.1\r\nHost: cdn.example.com\r\n\r\n"},
	} {
		b.Run(head.name, func(b *testing.B) {
			text := []byte(head.text)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var r Request
			for b.Loop() {
				if n, v := r.parse(text); n != len(text) || v != complete {
					b.Fatal(n, v)
				}
			}
		})
	}
}
