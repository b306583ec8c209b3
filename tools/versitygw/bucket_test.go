package versitygw

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/buckets"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

func open(t *testing.T, endpoint string) bucket.Bucket {
	t.Helper()
	return openWith(t, bucket.S3Options{Endpoint: endpoint, Name: bucketName, Prefix: "cdn"})
}

func openWith(t *testing.T, o bucket.S3Options) bucket.Bucket {
	t.Helper()
	b, err := bucket.OpenS3(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBucket(t *testing.T) {
	t.Parallel()
	buckets.Suite(t, open(t, front(t, nil, newGateway(t, folder(t), false)).URL))
}

func TestBucketOfTwoGateways(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	b := open(t, front(t, nil, newGateway(t, dir, false), newGateway(t, dir, false)).URL)
	if err := bucket.Probe(t.Context(), b); err != nil {
		t.Error(err)
	}
}

// Two gateways on one folder, without the file that they lock, decide on a condition and write later.
func TestProbeWithoutLockFile(t *testing.T) {
	t.Parallel()
	needChance(t)
	dir := folder(t)
	b := open(t, front(t, nil, newGateway(t, dir, true), newGateway(t, dir, true)).URL)
	var unfit *bucket.UnfitError
	if err := bucket.Probe(t.Context(), b); !errors.As(err, &unfit) || !strings.Contains(err.Error(), "s3://"+bucketName+"/cdn/") {
		t.Errorf("the probe says: %v", err)
	}
}

// What the operator has wrong is told by what it is, and by what to do.
func TestMistakes(t *testing.T) {
	good := front(t, nil, newGateway(t, folder(t), false)).URL
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	website := httptest.NewServer(http.NotFoundHandler())
	defer website.Close()
	for _, test := range []struct {
		name string
		o    bucket.S3Options
		set  map[string]string
		want string
	}{
		{"bucket", bucket.S3Options{Endpoint: good, Name: "none-such"}, nil, `no bucket "none-such"`},
		{"endpoint", bucket.S3Options{Endpoint: "http://" + closed.Addr().String(), Name: bucketName}, nil, "check --bucket-endpoint|is --bucket-endpoint its address"},
		{"TLS", bucket.S3Options{Endpoint: strings.Replace(good, "http:", "https:", 1), Name: bucketName}, nil, "begin --bucket-endpoint with http://"},
		{"no store", bucket.S3Options{Endpoint: website.URL, Name: bucketName}, nil, "not an object store"},
		{"region", bucket.S3Options{Endpoint: good, Name: bucketName, Region: "eu-central-1"}, nil, "set AWS_REGION"},
		{"access key", bucket.S3Options{Endpoint: good, Name: bucketName}, map[string]string{"AWS_ACCESS_KEY_ID": "other"}, "check AWS_ACCESS_KEY_ID"},
		{"secret key", bucket.S3Options{Endpoint: good, Name: bucketName}, map[string]string{"AWS_SECRET_ACCESS_KEY": "other"}, "check AWS_SECRET_ACCESS_KEY"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for k, v := range test.set {
				t.Setenv(k, v)
			}
			err := bucket.Probe(t.Context(), openWith(t, test.o))
			if err == nil {
				t.Fatal("no error")
			}
			t.Log(err)
			for want := range strings.SplitSeq(test.want, "|") {
				if strings.Contains(err.Error(), want) {
					return
				}
			}
			t.Errorf("it does not say %q", test.want)
		})
	}
}

// A store whose clock is an hour ahead says that the request is too old.
func TestClock(t *testing.T) {
	t.Parallel()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`<?xml version="1.0"?><Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large</Message></Error>`))
	}))
	defer store.Close()
	if err := bucket.Probe(t.Context(), open(t, store.URL)); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Error(err)
	}
}

// TestAnyStore tests an object store of the operator's.
func TestAnyStore(t *testing.T) {
	endpoint, name := os.Getenv("LARDER_TEST_S3_ENDPOINT"), os.Getenv("LARDER_TEST_S3_BUCKET")
	if endpoint == "" || name == "" {
		t.Skip("set LARDER_TEST_S3_ENDPOINT and LARDER_TEST_S3_BUCKET, LARDER_TEST_S3_ACCESS_KEY and LARDER_TEST_S3_SECRET_KEY, and AWS_REGION, to test a store of yours; it gets objects below larder-test/")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", os.Getenv("LARDER_TEST_S3_ACCESS_KEY"))
	t.Setenv("AWS_SECRET_ACCESS_KEY", os.Getenv("LARDER_TEST_S3_SECRET_KEY"))
	b := openWith(t, bucket.S3Options{Endpoint: endpoint, Name: name, Region: os.Getenv("AWS_REGION"), Prefix: "larder-test/" + rand.Text()})
	t.Cleanup(func() {
		for o, err := range b.List(context.Background(), "", "") {
			if err == nil {
				err = b.Delete(context.Background(), o.Key)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	buckets.Suite(t, b)
}
