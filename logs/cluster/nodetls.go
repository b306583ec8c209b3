package cluster

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"
)

// nodeName is what every node's certificate is for: who has the cluster's key is a node, whatever its address.
const nodeName = "node.larder.internal"

// Certificates of nodes do not go by anybody's clock. What ends them is another cluster.key.
var (
	nodesFrom  = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	nodesUntil = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

// TLS returns the configurations with which a node listens to other nodes, and with which it sends requests to them (ask). Both sides present a
// certificate of an authority whose key is derived from the cluster's key, so only nodes with that key connect. Each call creates a new certificate.
func (k *Key) TLS() (listen, ask *tls.Config, err error) {
	seed, err := k.Derive("authority of nodes")
	if err != nil {
		return nil, nil, err
	}
	authorityKey := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Larder cluster"}, NotBefore: nodesFrom, NotAfter: nodesUntil,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, authorityKey.Public(), authorityKey)
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	public, own, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: nodeName}, DNSNames: []string{nodeName}, NotBefore: nodesFrom, NotAfter: nodesUntil,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, authority, public, authorityKey); err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	certificates := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: own}}
	listen = &tls.Config{Certificates: certificates, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}
	ask = &tls.Config{Certificates: certificates, RootCAs: pool, ServerName: nodeName, MinVersion: tls.VersionTLS13}
	return listen, ask, nil
}
