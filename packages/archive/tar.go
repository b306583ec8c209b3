package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
)

// walkTar reads a tar in any of its dialects: long names and PAX records are archive/tar's business.
func walkTar(w *walker, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		header, err := tr.Next()
		if err == io.EOF {
			return w.err
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // insecure names get our own reasons
			return w.corrupt("", err)
		}
		if err := walkTarEntry(w, tr, header); err != nil {
			return err
		}
	}
}

func walkTarEntry(w *walker, tr *tar.Reader, header *tar.Header) error {
	if sparse(header) {
		return w.refuse(header.Name, "a sparse file")
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont:
		return w.file(header.Name, header.Size, "", true, func() (io.Reader, error) { return tr, nil })
	case tar.TypeDir:
		return w.folder(header.Name)
	case tar.TypeXGlobalHeader:
		return w.count() // a forge's comment, for instance
	case tar.TypeSymlink:
		return w.skip(header.Name, "symbolic link")
	case tar.TypeLink:
		return w.skip(header.Name, "hard link")
	case tar.TypeChar, tar.TypeBlock:
		return w.skip(header.Name, "device")
	case tar.TypeFifo:
		return w.skip(header.Name, "named pipe")
	}
	return w.skip(header.Name, "unknown kind of entry")
}

// sparse reports whether a file has holes, which archive/tar fills: gigabytes of a few hundred bytes.
// Nothing that packs releases writes such files. Without them, no more bytes come out of a tar than went
// in, so that only the compression around it needs a limit.
func sparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// isTar reports whether head begins like a tar. A tar has no mark of its own before the ustar format,
// so archive/tar is asked: it verifies the first header's checksum.
func isTar(head []byte) bool {
	_, err := tar.NewReader(bytes.NewReader(head)).Next()
	return len(head) == 512 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrInsecurePath))
}
