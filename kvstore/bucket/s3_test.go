package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// An object is sent as it is, signed with its own hash. In minio-go's chunks with a signature each,
// an empty one left bytes behind that the gateway took for the next request.
func TestPutIsPlain(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	for _, want := range []string{"", "hello"} {
		store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != want || r.ContentLength != int64(len(want)) || len(r.TransferEncoding) > 0 || r.Header.Get("Content-Encoding") != "" {
				t.Errorf("%q came as %q (%v), %d bytes, %q, %q", want, body, err, r.ContentLength, r.TransferEncoding, r.Header.Get("Content-Encoding"))
			}
			sum := sha256.Sum256(body)
			if got := r.Header.Get("X-Amz-Content-Sha256"); got != hex.EncodeToString(sum[:]) {
				t.Errorf("%q is signed with %q", want, got)
			}
			w.Header().Set("ETag", `"1"`)
		}))
		b, err := OpenS3(S3Options{Endpoint: store.URL, Name: "bucket"})
		if err == nil {
			err = b.Put(t.Context(), "a/one", []byte(want))
		}
		if err != nil {
			t.Error(err)
		}
		store.Close()
	}
}

// A stalled answer is given up by the size that it said, not by the largest that the caller would take.
func TestStalledGet(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) (*http.Response, error){
		"no answer": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"half an answer": func(r *http.Request) (*http.Response, error) {
			body, w := io.Pipe()
			go func() {
				w.Write([]byte("hel"))
				<-r.Context().Done()
				w.CloseWithError(r.Context().Err())
			}()
			header := http.Header{"Etag": {`"1"`}, "Last-Modified": {"Mon, 02 Jan 2006 15:04:05 GMT"}, "Content-Length": {"5"}}
			return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: header, ContentLength: 5, Body: body, Request: r}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b, err := OpenS3(S3Options{Endpoint: "http://store.test", Name: "bucket", Transport: transport(answer)})
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				if _, _, err := b.Get(t.Context(), "a/one", 64<<20); !errors.Is(err, errLate) {
					t.Error(err)
				}
				if took := time.Since(begun); took > 2*requestTime {
					t.Errorf("it was waited for %v", took)
				}
			})
		})
	}
}

// TestSlowLoopOverList tests that what a loop does with the listed objects may take longer than a request, that it gets each object once, and that
// nothing goes on once a loop has ended early.
func TestSlowLoopOverList(t *testing.T) {
	const objects = 2*listPage + 500
	bubble.Test(t, func(t *testing.T) { // which fails if a goroutine is left
		s := &s3{name: "bucket", client: s3Client{listObjects: func(ctx context.Context, _ string, o minio.ListObjectsOptions) <-chan minio.ObjectInfo {
			items := make(chan minio.ObjectInfo, 1)
			go func() {
				defer close(items)
				for i := range objects {
					item := minio.ObjectInfo{Key: fmt.Sprintf("%05d", i)}
					if item.Key <= o.StartAfter {
						continue
					}
					select {
					case items <- item:
					case <-ctx.Done():
						items <- minio.ObjectInfo{Err: ctx.Err()}
						return
					}
				}
			}()
			return items
		}}}
		listed := 0
		for o, err := range s.List(t.Context(), "", "") {
			if err != nil || o.Key != fmt.Sprintf("%05d", listed) {
				t.Fatalf("object %d is %q, %v", listed, o.Key, err)
			}
			listed++
			time.Sleep(requestTime / 100)
		}
		if listed != objects {
			t.Errorf("%d objects were listed, want %d", listed, objects)
		}
		for range s.List(t.Context(), "", "") {
			break
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
