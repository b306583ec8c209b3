package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/verify"
)

// verifyProof verifies a file without a network by the proof that the flags name, and prints the result. If the file was not
// proven to be published, it returns a [verdict] with the exit code.
func (a *cli) verifyProof(v verification, file string) error {
	var name verify.Name
	var err error
	if len(v.as) > 0 {
		if name, err = verify.ParseName(v.as[0]); err != nil {
			return err
		}
	}
	found := checkedProof{Subject: file, Proof: v.proof}
	if found.Result, err = v.trust.VerifyProofFile(v.proof, file, name); err != nil {
		return err
	}
	if !v.asJSON {
		found.print(a.stdout)
	} else if err := printJSON(a.stdout, found); err != nil {
		return err
	}
	if found.Outcome != verify.Published {
		return verdict{errors.New("the proof does not prove that the file was published"), exitOf[found.Outcome]}
	}
	return nil
}

// checkedProof is the facts about a file that a proof proves.
type checkedProof struct {
	Subject string `json:"subject"`
	Proof   string `json:"proof"`
	verify.Result
}

// print writes for people what the proof proves about the file.
func (p checkedProof) print(w io.Writer) {
	if p.Outcome != verify.Published {
		fmt.Fprintf(w, "%s: %s: %s\n", p.Outcome, p.Subject, text.Plain(p.Problem))
		return
	}
	fmt.Fprintf(w, "%s: %s: it is %s\n", p.Outcome, p.Subject, text.Plain(p.Name.String()))
	fmt.Fprintf(w, "  %s bytes, %s\n", humanize.Comma(p.Size), p.SRI)
	fmt.Fprintf(w, "  published by entry %d on %s\n", p.Result.Published.Entry, p.Result.Published.Time.Local().Format(time.DateTime))
	fmt.Fprintf(w, "  by a log that was %s\n", verify.DescribeAge(p.Cosigned, time.Now()))
	fmt.Fprintln(w, "  whether it was withdrawn since, only the log's server tells: larder verify URL")
}

// verifyEvidence verifies a file of evidence without a network, and prints what it proves. It always returns an error: a
// [verdict] with the exit code, which says whether the log has forked.
func (a *cli) verifyEvidence(v verification) error {
	found, err := verify.VerifyEvidence(v.evidence, v.trust.Key)
	if err != nil {
		return err
	}
	if !v.asJSON {
		writeEvidence(a.stdout, found)
	} else if err := printJSON(a.stdout, found); err != nil {
		return err
	}
	message := "the file proves no fork"
	if found.Outcome == verify.Forked {
		message = "the log has forked"
	}
	return verdict{errors.New(message), exitOf[found.Outcome]}
}
