// Package browsertest tests Larder as people meet it: the real program, filled with
// releases by its own import command, in a real browser.
//
// Every test is a story: a user searches, picks a version, copies a tag and puts
// it into a page of their own. Elements are found by role and accessible name, as
// a screen reader finds them, so that a story breaks when people would be lost and
// not when a class is renamed. Whatever the story, no request may leave the
// origins that it is about, and the console must stay clean.
//
// Pages are loaded once, and checked on phones and on desktops; LARDER_TEST_WHOLE=1 loads each
// at each width and in each scheme. Tests run four at once unless -parallel says otherwise.
//
// The tests need Chromium (CHROME_PATH, or chromium, chromium-browser or
// google-chrome in PATH) and are skipped where there is none. Those that need
// axe-core or Lighthouse are skipped until `make audit` has fetched them. The
// package has no other code, and must know nothing of the program's insides but
// how to withdraw a release, which no command does.
package browsertest
