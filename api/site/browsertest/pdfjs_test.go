package browsertest

import (
	"os"
	"path/filepath"
	"testing"
)

// pdfViewer is a page with the parts of pdf.js's viewer, beside which the package's folders are.
const pdfViewer = `<!doctype html><html lang="en"><title>PDF</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="web/pdf_viewer.css">
<div id="container" style="position: absolute; inset: 0; overflow: auto"><div id="viewer" class="pdfViewer"></div></div>
<script type="module">
const pdf = await import("./build/pdf.mjs")
globalThis.pdfjsLib = pdf
const { EventBus, PDFLinkService, PDFViewer } = await import("./web/pdf_viewer.mjs")
pdf.GlobalWorkerOptions.workerSrc = new URL("build/pdf.worker.mjs", import.meta.url).href
const eventBus = new EventBus(), linkService = new PDFLinkService({ eventBus })
const viewer = new PDFViewer({ container: document.querySelector("#container"), eventBus, linkService })
linkService.setViewer(viewer)
eventBus.on("textlayerrendered", () => { window.shown = document.querySelector(".textLayer").innerText })
viewer.setDocument(await pdf.getDocument("hello.pdf").promise)
</script>
`

// helloPDF has no table of its objects; readers find them.
const helloPDF = `%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] /Contents 4 0 R /Resources <</Font <</F 5 0 R>>>>>> endobj
4 0 obj <</Length 43>> stream
BT /F 20 Tf 20 40 Td (Hello, larder) Tj ET 
endstream endobj
5 0 obj <</Type /Font /Subtype /Type1 /BaseFont /Helvetica>> endobj
trailer <</Root 1 0 R>>
`

// The real pdf.js shows a document from where all of it is published. LARDER_TEST_PDFJS names the
// unpacked npm package pdfjs-dist.
func TestPDFViewer(t *testing.T) {
	pdfjs := os.Getenv("LARDER_TEST_PDFJS")
	if pdfjs == "" {
		t.Skip("LARDER_TEST_PDFJS is not set")
	}
	s := openStrangers(t)
	release := filepath.Join(t.TempDir(), "pdf")
	for _, folder := range []string{"build", "web"} {
		if err := os.CopyFS(filepath.Join(release, folder), os.DirFS(filepath.Join(pdfjs, folder))); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"viewer.html": pdfViewer, "hello.pdf": helloPDF} {
		if err := os.WriteFile(filepath.Join(release, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := larder(s.binary, s.data, "import", "gallery", "2.0.0", release, "--catalogue", "testdata/strangers/catalogue").CombinedOutput()
	if err != nil {
		t.Fatalf("larder import: %v\n%s", err, out)
	}
	b := s.tab(t)
	b.tolerate(".") // pdf.js says that it goes without a worker
	b.visit(s.files + "/ajax/libs/gallery/2.0.0/viewer.html")
	b.until(`window.shown?.includes("Hello, larder")`)
	if origin := eval[string](b, "self.origin"); origin != "null" {
		t.Errorf("the origin is %s", origin)
	}
}
