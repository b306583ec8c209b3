package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// An element is found as assistive technology finds it.
type element struct {
	tab  *tab
	node cdp.BackendNodeID
	role string
	name string // accessible
}

func (e element) String() string { return fmt.Sprintf("%s %q", e.role, e.name) }

// property returns a property of the element in the accessibility tree, "" if it has none.
func (e element) property(name string) string {
	e.tab.Helper()
	node := call(e.tab, accessibility.GetPartialAXTree, accessibility.GetPartialAXTreeParams{BackendNodeID: e.node}).Nodes[0]
	for _, p := range node.Properties {
		var value string
		if string(p.Name) == name && json.Unmarshal(p.Value.Value, &value) == nil {
			return value
		}
	}
	return ""
}

// all returns the elements that have a role and a name that the pattern matches, as
// far as they are there for assistive technology.
func (b *tab) all(role, pattern string) []element {
	b.Helper()
	found, err := b.tryAll(role, pattern)
	if err != nil {
		b.Fatalf("looking for the %s %q: %v", role, pattern, err)
	}
	return found
}

func (b *tab) tryAll(role, pattern string) ([]element, error) {
	name := regexp.MustCompile(pattern)
	document, err := tryCall(b, dom.GetDocument, dom.GetDocumentParams{Depth: new(int64)})
	if err != nil {
		return nil, err
	}
	tree, err := tryCall(b, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{BackendNodeID: document.Root.BackendNodeID, Role: role})
	if err != nil {
		return nil, err
	}
	var found []element
	for _, node := range tree.Nodes {
		if node.Ignored {
			continue
		}
		e := element{tab: b, node: node.BackendDOMNodeID, role: role}
		if node.Name != nil && len(node.Name.Value) > 0 {
			if err := json.Unmarshal(node.Name.Value, &e.name); err != nil {
				return nil, err
			}
		}
		if name.MatchString(e.name) {
			found = append(found, e)
		}
	}
	return found, nil
}

// find waits for the one element that has the role and a name that the pattern
// matches. Where several have the very same name, a user who hears it must be right with
// any; it returns the first.
func (b *tab) find(role, pattern string) element {
	b.Helper()
	var found []element
	b.wait(fmt.Sprintf("one %s %q", role, pattern), func() bool {
		var err error
		found, err = b.tryAll(role, pattern)
		return err == nil && len(found) > 0
	})
	for _, other := range found[1:] {
		if other.name != found[0].name {
			b.Fatalf("%d elements have the role %s and a name like %q: %v", len(found), role, pattern, found)
		}
	}
	return found[0]
}

// on calls a JavaScript function with the element as this.
func on[T any](e element, function string) T {
	e.tab.Helper()
	object := call(e.tab, dom.ResolveNode, dom.ResolveNodeParams{BackendNodeID: e.node}).Object
	ctx, cancel := context.WithTimeout(e.tab.ctx, timeout)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.CallFunctionOn[T](function, func(p *runtime.CallFunctionOnParams) {
		p.ObjectID = object.ObjectID
	}))
	if err != nil {
		e.tab.Fatalf("%v: %v", e, err)
	}
	return v
}

// click is a real one, in the middle of the element.
func (e element) click() {
	e.tab.Helper()
	call(e.tab, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{BackendNodeID: e.node})
	quads := call(e.tab, dom.GetContentQuads, dom.GetContentQuadsParams{BackendNodeID: e.node}).Quads
	if len(quads) == 0 {
		e.tab.Fatalf("%v cannot be seen", e)
	}
	q := quads[0]
	e.tab.do(chromedp.MouseClickXY((q[0]+q[4])/2, (q[1]+q[5])/2))
}

func (e element) focus() {
	e.tab.Helper()
	call(e.tab, dom.Focus, dom.FocusParams{BackendNodeID: e.node})
}

// focused reports whether the element has the focus.
func (e element) focused() bool {
	e.tab.Helper()
	return on[bool](e, "function() { return this === document.activeElement }")
}
