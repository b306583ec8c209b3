package waitingroom

import (
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// keySize is how many bytes a key has.
const keySize = chacha20poly1305.KeySize

// maxKeys bounds how many keys are read, and so what a forged cookie can cost.
const maxKeys = 16

// A Keyring holds the keys of tickets: the first writes, all of them read. It is never
// changed.
type Keyring struct {
	keys []key
	salt []byte
}

// A key is a cipher, and the id that each ticket of it begins with.
type key struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

const keyIDSize = 4

// newKeyring returns a keyring of secrets of keySize bytes, from 1 to maxKeys. The first one encrypts new tickets, all decrypt.
// It derives numbers and ids from the last one.
func newKeyring(secrets ...[]byte) (*Keyring, error) {
	if len(secrets) == 0 || len(secrets) > maxKeys {
		return nil, fmt.Errorf("waitingroom: there are %d keys; there must be from 1 to %d", len(secrets), maxKeys)
	}
	ring := &Keyring{}
	for _, secret := range secrets {
		aead, err := chacha20poly1305.NewX(secret)
		if err != nil {
			return nil, fmt.Errorf("waitingroom: %w", err)
		}
		sum := sha256.Sum256(append([]byte("larder waiting room key\x00"), secret...))
		ring.keys = append(ring.keys, key{[keyIDSize]byte(sum[:]), aead})
	}
	mac := hmac.New(sha256.New, secrets[len(secrets)-1]) // the one that changes last
	mac.Write([]byte("larder waiting room salt"))
	ring.salt = mac.Sum(nil)
	return ring, nil
}

// WithFirst returns a keyring that encrypts with another key, and decrypts with that and all present ones. It derives numbers and
// ids from the other key. k does not change. It fails if the secret does not have 32 bytes.
func (k *Keyring) WithFirst(secret []byte) (*Keyring, error) {
	ring, err := newKeyring(secret)
	if err == nil {
		ring.keys = append(ring.keys, k.keys...)
	}
	return ring, err
}

// deriveNumber returns a secret number for a name, always the same one. Only processes with the same key to derive from can
// compute it.
func (k *Keyring) deriveNumber(name string) uint64 {
	mac := hmac.New(sha256.New, k.salt)
	mac.Write([]byte(name))
	return binary.BigEndian.Uint64(mac.Sum(nil))
}

// guestID returns the id under which a room counts a client that has no ticket, by the client's address prefix. It depends
// only on these and on the key that the ring derives from: the last one of the file, so that it stays when a new key is put on top, or
// that of WithFirst. No ticket has it, because those of tickets are random.
func (k *Keyring) guestID(room string, client netip.Prefix) (id queue.TicketID) {
	mac := hmac.New(sha256.New, k.salt)
	fmt.Fprintf(mac, "guest\x00%s\x00%s", room, client)
	copy(id[:], mac.Sum(nil))
	return id
}

// find returns the key with an id, nil for none. The id is a hash of the key, which each ticket begins with.
func (k *Keyring) find(id [keyIDSize]byte) *key {
	for i := range k.keys {
		if k.keys[i].id == id {
			return &k.keys[i]
		}
	}
	return nil
}

// keyFile is the name of the file of keys in a key folder: a key in base64 on each line,
// the one that writes first. To rotate, put a new line on top; to end the old tickets,
// remove their line.
const keyFile = "waiting-room.keys"

// OpenKeys reads the keys in a folder. If the folder has no key file, or does not exist, it creates both with a first key. With
// readOnly it writes nothing, and that key is only in memory. It returns an error if other users than the owner have any right to the
// file, and for a file with a mistake, no key or too many.
func OpenKeys(dir string, readOnly bool) (*Keyring, error) {
	file := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if text = newKeyText(); !readOnly {
			if text, err = createKeys(dir, file, text); err != nil {
				return nil, fmt.Errorf("couldn't make the key of the waiting rooms: %w", err)
			}
		}
	} else if err != nil {
		return nil, fmt.Errorf("couldn't read the keys of the waiting rooms: %w", err)
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by other users, and anyone with a key can make tickets: chmod 600 it, and put a new key on top if another user may have read it", file)
	}
	var secrets [][]byte
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(secret) != keySize { // The message never repeats the line: it may be most of a key.
			return nil, fmt.Errorf("%s:%d: must be %d bytes in base64, such as `openssl rand -base64 %d` prints", file, i+1, keySize, keySize)
		}
		if slices.ContainsFunc(secrets, func(s []byte) bool { return string(s) == string(secret) }) {
			return nil, fmt.Errorf("%s:%d: is the key of another line; remove it", file, i+1)
		}
		secrets = append(secrets, secret)
	}
	ring, err := newKeyring(secrets...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return ring, nil
}

// newKeyText returns the text of a key file with one new key.
func newKeyText() []byte {
	secret := make([]byte, keySize)
	rand.Read(secret)
	return []byte("# Keys of the waiting rooms' tickets. The first writes, all of them read; put a new one on top to rotate.\n" +
		base64.StdEncoding.EncodeToString(secret) + "\n")
}

// createKeys durably creates the key file with a text, and its folder dir, and returns the text of the file. The file appears
// complete. If another process has created it meanwhile, createKeys returns the text of that, whose key is used.
func createKeys(dir, file string, text []byte) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := disk.Create(file, text, 0o600); errors.Is(err, fs.ErrExist) {
		return os.ReadFile(file)
	} else if err != nil {
		return nil, err
	}
	return text, nil
}
