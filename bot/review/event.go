package review

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// An event is what a delivery asks for.
type event struct {
	repository string // OWNER/NAME
	pull       int    // 0: those whose newest commit is head
	head       string // commit
	again      bool   // look even where somebody has looked
	closed     bool   // the pull request is over
}

// errUnwanted: the event is none that there is something to do for.
var errUnwanted = errors.New("nothing to do for such an event")

var (
	repositoryName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}/[A-Za-z0-9._-]{1,100}$`)
	commitHash     = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
)

// parseEvent reads a delivery. Of the text in it only the repository's name and commits are used.
func parseEvent(kind string, payload []byte) (event, error) {
	type head struct {
		SHA string `json:"sha"`
	}
	var p struct {
		Action     string
		Repository struct {
			FullName string `json:"full_name"`
		}
		PullRequest struct {
			Number int
			Head   head
		} `json:"pull_request"`
		Changes struct{ Base json.RawMessage }
		Check   struct {
			Name       string
			HeadSHA    string `json:"head_sha"`
			ExternalID string `json:"external_id"`
		} `json:"check_run"`
		Suite struct {
			HeadSHA string `json:"head_sha"`
		} `json:"check_suite"`
	}
	switch kind {
	case "pull_request", "check_run", "check_suite":
	default:
		return event{}, errUnwanted
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return event{}, fmt.Errorf("the payload of %s is not what GitHub sends: %w", kind, err)
	}
	e := event{repository: p.Repository.FullName}
	switch kind + " " + p.Action {
	case "pull_request opened", "pull_request synchronize", "pull_request reopened":
		e.pull, e.head = p.PullRequest.Number, p.PullRequest.Head.SHA
	case "pull_request edited":
		if len(p.Changes.Base) == 0 {
			return event{}, errUnwanted
		}
		e.pull, e.head, e.again = p.PullRequest.Number, p.PullRequest.Head.SHA, true // it changes other files now
	case "pull_request closed":
		e.pull, e.head, e.closed = p.PullRequest.Number, p.PullRequest.Head.SHA, true
	case "check_run rerequested":
		if p.Check.Name != Name {
			return event{}, errUnwanted
		}
		e.pull, e.head, e.again = pullOf(p.Check.ExternalID), p.Check.HeadSHA, true
	case "check_suite rerequested":
		e.head, e.again = p.Suite.HeadSHA, true // GitHub names no pull requests from forks here
	default:
		return event{}, errUnwanted
	}
	switch {
	case !repositoryName.MatchString(e.repository):
		return event{}, fmt.Errorf("the payload of %s names no repository", kind)
	case !commitHash.MatchString(e.head):
		return event{}, fmt.Errorf("the payload of %s names no commit", kind)
	case e.pull < 0, e.pull == 0 && kind == "pull_request":
		return event{}, fmt.Errorf("the payload of %s names no pull request", kind)
	}
	return e, nil
}

// A check run knows its pull request by its external id.
const externalPrefix = "larder-pull-"

func externalID(pull int) string { return externalPrefix + strconv.Itoa(pull) }

// pullOf returns 0 for an id that is none of ours.
func pullOf(externalID string) int {
	digits, ok := strings.CutPrefix(externalID, externalPrefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil {
		return 0
	}
	return int(n)
}
