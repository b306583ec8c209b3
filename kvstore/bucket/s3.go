package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// S3Options say where an object store is.
type S3Options struct {
	// Endpoint is the store's URL, such as https://s3.eu-central-1.amazonaws.com. Required.
	Endpoint string
	// Name is that of the bucket. Required.
	Name string
	// Prefix comes before every key, with a slash between. Default: none.
	Prefix string
	// Region is that of the bucket. Default: us-east-1.
	Region string
	// Transport speaks to the store. Default: one that waits 10 s for the head of a response.
	Transport http.RoundTripper
}

// How long a request may take: less for a small one, more by its bytes.
const (
	requestTime = 10 * time.Second
	slowestRate = 1 << 20 // bytes a second
	listPage    = 1000
)

// errLate says that the store did not respond in time, or stopped in the middle of its response.
var errLate = errors.New("the store's answer took too long")

// s3 is a Bucket in an object store. Nothing is tried twice: the caller knows what may be.
type s3 struct {
	client s3Client
	name   string
	prefix string
	where  string
}

// s3Client has the methods of minio's client that a bucket calls. As a field, the client's own type would keep all of its exported
// methods in the program (1.5 MB): the linker keeps every method that reflection can reach from a value in an interface.
type s3Client struct {
	putObject func(ctx context.Context, bucket, key string, data io.Reader, size int64, md5Base64, sha256Hex string, o minio.PutObjectOptions) (minio.UploadInfo, error)
	getObject func(ctx context.Context, bucket, key string, o minio.GetObjectOptions) (io.ReadCloser, minio.ObjectInfo, http.Header, error)
	// listObjects requests a page at a time. Core's method for pages takes no context.
	listObjects  func(ctx context.Context, bucket string, o minio.ListObjectsOptions) <-chan minio.ObjectInfo
	removeObject func(ctx context.Context, bucket, key string, o minio.RemoveObjectOptions) error
}

// OpenS3 returns a bucket in an object store. It takes credentials from AWS's usual environment variables or files, when requests are sent; without
// any, requests are anonymous. It sends no request yet; see [Probe]. It returns an error if the endpoint or the prefix is not valid.
func OpenS3(o S3Options) (Bucket, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q is not the URL of an object store, such as https://s3.eu-central-1.amazonaws.com", o.Endpoint)
	}
	if o.Prefix = strings.Trim(o.Prefix, "/"); o.Prefix != "" {
		if err := checkKey(o.Prefix); err != nil {
			return nil, fmt.Errorf("%q cannot be the prefix of a bucket's keys: letters, digits, dots, hyphens and slashes only", o.Prefix)
		}
		o.Prefix += "/"
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.Transport == nil {
		o.Transport = newTransport()
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
		}),
		Secure:     u.Scheme == "https",
		Region:     o.Region,
		Transport:  o.Transport,
		MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("couldn't prepare for %s: %w", o.Endpoint, err)
	}
	where := fmt.Sprintf("s3://%s/%s at %s", o.Name, o.Prefix, u.Host)
	core := minio.Core{Client: client}
	return &s3{s3Client{core.PutObject, core.GetObject, client.ListObjects, client.RemoveObject}, o.Name, o.Prefix, where}, nil
}

// newTransport returns the default transport for requests to a store, with a limit for the time until the head of a response.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	t.ResponseHeaderTimeout = requestTime
	t.MaxIdleConnsPerHost = 32
	t.DisableCompression = true
	return t
}

// String implements [Bucket]: it returns the bucket's URL and the store's host, for messages.
func (s *s3) String() string { return s.where }

// Create implements [Bucket]: it creates an object by a conditional write (If-None-Match: *), or returns [ErrExists].
func (s *s3) Create(ctx context.Context, key string, data []byte) (Version, error) {
	var o minio.PutObjectOptions
	o.SetMatchETagExcept("*")
	v, err := s.put(ctx, key, data, o)
	if isFailedCondition(err) {
		err = ErrExists
	}
	return v, objectError(s, key, explainNoSuchKey(err))
}

// Replace implements [Bucket]: it replaces an object that has the version old by a conditional write (If-Match), and otherwise returns [ErrChanged].
func (s *s3) Replace(ctx context.Context, key string, data []byte, old Version) (Version, error) {
	var o minio.PutObjectOptions
	o.SetMatchETag(string(old))
	v, err := s.put(ctx, key, data, o)
	if isFailedCondition(err) || isMissing(err) {
		err = ErrChanged
	}
	return v, objectError(s, key, err)
}

// Put implements [Bucket]: it creates or replaces an object, whatever its version.
func (s *s3) Put(ctx context.Context, key string, data []byte) error {
	_, err := s.put(ctx, key, data, minio.PutObjectOptions{})
	return objectError(s, key, explainNoSuchKey(err))
}

// put writes an object under the conditions in o, and returns its version, the ETag. If the store does not decide between this and another writer,
// the error is errBusy. A store without an ETag in its response is an error, although it may have written. The request may take 10 s and one more for
// each MiB.
func (s *s3) put(ctx context.Context, key string, data []byte, o minio.PutObjectOptions) (Version, error) {
	if err := checkKey(s.prefix + key); err != nil {
		return "", err
	}
	ctx, cancel := withTimeout(ctx, int64(len(data)))
	defer cancel()
	o.ContentType = "application/octet-stream"
	o.DisableContentSha256 = true // of each chunk: the whole has one
	sum := sha256.Sum256(data)
	info, err := s.client.putObject(ctx, s.name, s.prefix+key, bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), o)
	if minio.ToErrorResponse(err).StatusCode == http.StatusConflict {
		err = errors.Join(errBusy, err)
	}
	if err != nil {
		return "", s.explainError(err)
	}
	if info.ETag == "" {
		return "", errors.New("the store has answered without an ETag")
	}
	return Version(info.ETag), nil
}

// Get implements [Bucket]: it returns an object of up to most bytes and its version, or [ErrNotFound], or [ErrTooLarge].
func (s *s3) Get(ctx context.Context, key string, most int64) ([]byte, Version, error) {
	return s.GetOther(ctx, key, most, "")
}

// GetOther implements [Bucket]: it is Get, but returns nil for the bytes of an object that has the version known, with that version, by a conditional
// request (If-None-Match).
func (s *s3) GetOther(ctx context.Context, key string, most int64, known Version) ([]byte, Version, error) {
	var o minio.GetObjectOptions
	if known != "" {
		if err := o.SetMatchETagExcept(string(known)); err != nil {
			return nil, "", objectError(s, key, err)
		}
	}
	data, v, err := s.get(ctx, key, most, o)
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotModified && known != "" {
		return nil, known, nil
	}
	if err != nil {
		return nil, "", objectError(s, key, err)
	}
	return data, v, nil
}

// get returns an object of at most most bytes and its version, under the conditions in o, or [ErrNotFound], or [ErrTooLarge]. It ends with errLate if
// the head takes over 10 s, or the body longer than bodyTime allows for its size. A body that is shorter or longer than the head says is
// [io.ErrUnexpectedEOF].
func (s *s3) get(ctx context.Context, key string, most int64, o minio.GetObjectOptions) ([]byte, Version, error) {
	if err := checkKey(s.prefix + key); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(requestTime, func() { cancel(errLate) })
	defer late.Stop()
	body, info, _, err := s.client.getObject(ctx, s.name, s.prefix+key, o)
	if err != nil && context.Cause(ctx) == errLate {
		err = errLate
	}
	if isMissing(err) {
		return nil, "", ErrNotFound
	}
	if err != nil {
		return nil, "", s.explainError(err)
	}
	defer body.Close()
	if info.Size > most {
		return nil, "", ErrTooLarge
	}
	late.Reset(bodyTime(info.Size)) // most may be far more
	data, err := readUpTo(body, most)
	if err != nil && context.Cause(ctx) == errLate {
		err = errLate
	}
	if err == nil && int64(len(data)) != info.Size {
		err = io.ErrUnexpectedEOF
	}
	return data, Version(info.ETag), err
}

// List implements [Bucket]: it iterates over the objects whose keys begin with prefix and come after the key after, in the store's order, with a
// request for each 1,000, which may take 10 s. An error is the last thing it yields.
func (s *s3) List(ctx context.Context, prefix, after string) iter.Seq2[Object, error] {
	if after != "" {
		after = s.prefix + after
	}
	return func(yield func(Object, error) bool) {
		for {
			page, err := s.readPage(ctx, prefix, after)
			for _, object := range page {
				after = s.prefix + object.Key
				if !yield(object, nil) {
					return
				}
			}
			if err != nil {
				yield(Object{}, objectError(s, prefix, s.explainError(err)))
				return
			}
			if len(page) < listPage {
				return
			}
		}
	}
}

// readPage returns the objects of one response to a list request: up to listPage whose keys begin with prefix and come after the key
// after, which includes the prefix of the bucket's URL. The time limit of requests is for this one. Beside an error, it returns the
// objects that came before it.
func (s *s3) readPage(ctx context.Context, prefix, after string) (page []Object, err error) {
	ctx, cancel := withTimeout(ctx, 0)
	defer cancel()
	items := s.client.listObjects(ctx, s.name, minio.ListObjectsOptions{Prefix: s.prefix + prefix, StartAfter: after, Recursive: true, MaxKeys: listPage})
	for item := range items {
		if item.Err != nil {
			return page, item.Err
		}
		if page = append(page, Object{strings.TrimPrefix(item.Key, s.prefix), item.Size}); len(page) == listPage {
			break
		}
	}
	cancel()
	for range items { // its goroutine ends once all is read
	}
	return page, nil
}

// Delete implements [Bucket]: it removes an object, if it exists, whatever its version.
func (s *s3) Delete(ctx context.Context, key string) error {
	err := checkKey(s.prefix + key)
	if err == nil {
		ctx, cancel := withTimeout(ctx, 0)
		defer cancel()
		err = s.client.removeObject(ctx, s.name, s.prefix+key, minio.RemoveObjectOptions{})
	}
	if isMissing(err) {
		err = nil
	}
	return objectError(s, key, s.explainError(err))
}

// withTimeout returns a context for a request that sends or receives that many bytes, with the time limit of bodyTime. The caller calls the function.
func withTimeout(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, bodyTime(bytes))
}

// bodyTime returns how long a request or response with a body of that many bytes may take: 10 s, and one more per MiB, in proportion.
func bodyTime(bytes int64) time.Duration {
	return requestTime + time.Duration(bytes)*time.Second/slowestRate
}

// isFailedCondition reports whether err is the store's response that the condition of a write did not hold (412). err is as the client returned it:
// a wrapped one is not recognized.
func isFailedCondition(err error) bool {
	return err != nil && minio.ToErrorResponse(err).StatusCode == http.StatusPreconditionFailed
}

// isMissing reports whether err is the store's response that there is no such object, rather than no such bucket.
func isMissing(err error) bool {
	return err != nil && minio.ToErrorResponse(err).Code == minio.NoSuchKey
}

// explainNoSuchKey explains err, the error of a write, if it says that the object is missing: then the endpoint is not an object store. It returns
// other errors as they are.
func explainNoSuchKey(err error) error {
	if isMissing(err) {
		return fmt.Errorf("what answers there is not an object store; check --bucket-endpoint: %w", err)
	}
	return err
}

// explainError wraps an error of the store, or of reaching it, that the operator can correct with what is wrong and what to do. It returns other
// errors, and nil, as they are.
func (s *s3) explainError(err error) error {
	if err == nil {
		return nil
	}
	var dns *net.DNSError
	var dial *net.OpError
	answer := minio.ToErrorResponse(err)
	switch {
	case errors.As(err, &dns):
		return fmt.Errorf("the endpoint's name cannot be found; check --bucket-endpoint: %w", err)
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("the endpoint cannot be reached; is the store running, and is --bucket-endpoint its address? %w", err)
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("the endpoint speaks plain HTTP; begin --bucket-endpoint with http://: %w", err)
	}
	if answer.Code == "XAdminUserNotFound" { // as versitygw calls it
		answer.Code = "InvalidAccessKeyId"
	}
	what := map[string]string{
		"NoSuchBucket":                 "the store has no bucket %q; make it, or name another with --bucket",
		"InvalidBucketName":            "the store cannot have a bucket %q; name another with --bucket",
		"InvalidAccessKeyId":           "the store does not know the access key; check AWS_ACCESS_KEY_ID, or the profile in ~/.aws/credentials, for bucket %q",
		"SignatureDoesNotMatch":        "the secret key is not that of the access key; check AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws/credentials, for bucket %q",
		"AccessDenied":                 "the credentials do not allow this in bucket %q; they need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket (without credentials in AWS's variables or files, requests are anonymous)",
		"ExpiredToken":                 "the credentials for bucket %q have expired; get new ones",
		"RequestTimeTooSkewed":         "this machine's clock and the store's disagree by more than the store allows; set the clock (bucket %q)",
		"AuthorizationHeaderMalformed": "bucket %q is in another region; set AWS_REGION to it",
		"PermanentRedirect":            "bucket %q is in another region, or at another endpoint; set AWS_REGION and --bucket-endpoint",
		"IllegalLocationConstraint":    "bucket %q is in another region; set AWS_REGION to it",
	}[answer.Code]
	if what == "" && answer.StatusCode == http.StatusForbidden {
		what = "the store refuses the credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile in ~/.aws/credentials, for bucket %q"
	}
	if what == "" {
		return err
	}
	what = fmt.Sprintf(what, s.name)
	if answer.Region != "" {
		what += ", which is " + answer.Region
	}
	return fmt.Errorf("%s: %w", what, err)
}
