// Package download answers requests for whole releases:
// /download/{package}/{version}.tar.gz and .zip.
//
// An archive is made while it is sent, from the manifest and the contents of the
// store. It holds the release's files in the byte order of their paths, under one
// folder {package}-{version}, and nothing else: extracting two releases side by
// side mixes nothing up. Every file has mode 0644 and the time at which upstream
// published the release.
//
// What it guarantees:
//
//   - The same release gives the same bytes, at any time and on any node, whatever
//     codings its contents are kept in. So an archive has a strong entity tag that is
//     known before the archive is made, and HEAD and 304 cost a look-up.
//   - Every file is checked against the hash in the manifest on its way. Where one is
//     damaged the connection ends in the middle, or the answer is 503 where nothing
//     was sent yet; there is never a complete answer with less, or other, than the
//     release.
//   - Memory is bounded: Options.AtOnce archives are made at a time, and each holds
//     its manifest and one content in its stored form, with a decoder's window.
//     Who keeps others waiting must take 128 KiB a second on average.
//   - A withdrawn release is not served. An archive whose sending began before the
//     withdrawal is sent to its end.
//
// What it does not: there are no ranges, because the middle of an archive cannot be
// made without its beginning; a Range field is ignored, as RFC 9110 §14.2 allows.
// The length of an archive is known beforehand only where it is small, so a client of
// HTTP/1.0 learns of an archive that broke off from the archive alone; both formats
// show it. A path with a slash at its end is not the archive's.
//
// It must not know where releases come from, nor how assets are served.
package download
