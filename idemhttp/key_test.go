package idemhttp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

var keyTests = []struct {
	value string
	key   string // "" = malformed
}{
	{`"8e03978e-40d5-43e8-bc93-6894a57f9324"`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
	{`8e03978e-40d5-43e8-bc93-6894a57f9324`, "8e03978e-40d5-43e8-bc93-6894a57f9324"},
	{`"order 4711"`, "order 4711"},
	{`" leading and trailing "`, " leading and trailing "},
	{"  \"padded\"\t", "padded"},
	{"\tpadded ", "padded"},
	{`"a \"quoted\" \\ key"`, `a "quoted" \ key`},
	{`"a;b,c"`, "a;b,c"},
	{"dGVzdA==", "dGVzdA=="},
	{"!#$%&'()*+-./:<=>?@[]^_`{|}~", "!#$%&'()*+-./:<=>?@[]^_`{|}~"},
	{`"k";a`, "k"},
	{`"k";a=1;b=-1.5;  c="x\"y";d=tok/en;e=:YWJj:;f=?0;*g.h_i-j`, "k"},
	{`"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255)},
	{strings.Repeat("k", 255), strings.Repeat("k", 255)},

	{``, ""},
	{`   `, ""},
	{`""`, ""},
	{`"`, ""},
	{`"k`, ""},
	{`k"`, ""},
	{`'k k'`, ""},
	{`"k" x`, ""},
	{`"k""l"`, ""},
	{`"k", "l"`, ""},
	{`k,l`, ""},
	{`k;l`, ""},
	{`k l`, ""},
	{`k\l`, ""},
	{`"\n"`, ""},
	{`"k\`, ""},
	{"\"\x00\"", ""},
	{"k\x00", ""},
	{"\"k\x7f\"", ""},
	{`"schlüssel"`, ""},
	{`schlüssel`, ""},
	{"\"\xff\"", ""},
	{`"k";`, ""},
	{`"k";A=1`, ""},
	{`"k";a=`, ""},
	{`"k";a="x`, ""},
	{`"k";a=1234567890123456`, ""},
	{`"k" ;a=1`, ""},
	{`("k")`, ""},
	{`"` + strings.Repeat("k", 256) + `"`, ""},
	{strings.Repeat("k", 256), ""},
	{`"` + strings.Repeat("k", 3200) + `"`, ""},
	{`"` + strings.Repeat("k", 40000) + `"`, ""},
}

func TestParseKey(t *testing.T) {
	for _, tt := range keyTests {
		key, err := idemhttp.ParseKey(tt.value)
		if key != tt.key || (err == nil) != (tt.key != "") {
			t.Errorf("%.60q is the key %.60q, %v; want %.60q", tt.value, key, err, tt.key)
		}
	}
}

func TestFormatKey(t *testing.T) {
	for _, tt := range []struct{ key, value string }{
		{"k", `"k"`},
		{`a "b" \c`, `"a \"b\" \\c"`},
		{strings.Repeat(`"`, 255), `"` + strings.Repeat(`\"`, 255) + `"`},
	} {
		value, err := idemhttp.FormatKey(tt.key)
		if value != tt.value || err != nil {
			t.Errorf("%q is %s, %v; want %s", tt.key, value, err, tt.value)
		}
		if key, err := idemhttp.ParseKey(value); key != tt.key {
			t.Errorf("%s comes back as %q, %v", value, key, err)
		}
	}
	for _, key := range []string{"", "ü", "a\nb", "\x7f", strings.Repeat("k", 256)} {
		if value, err := idemhttp.FormatKey(key); !errors.Is(err, idem.ErrKey) {
			t.Errorf("%.10q is %q, %v; want ErrKey", key, value, err)
		}
	}
}

// KF-6: what is no key never becomes one, and costs neither a run nor a record;
// the longest key works together with the longest scope.
func TestKF6_Keys(t *testing.T) {
	f := newFixture(t, &idemhttp.Options{Scope: func(*http.Request) string { return strings.Repeat("s", idem.MaxScope) }}, created())
	longest := strings.Repeat("k", idem.MaxKey)
	for range 2 {
		if a := f.post("/", longest, ""); a.status != 201 || a.body != "created 1" {
			t.Errorf("the longest key: %v", a)
		}
	}
	f.wantRuns(1)
	for _, tt := range keyTests {
		if tt.key != "" || strings.ContainsAny(tt.value, "\x00\x7f") { // the client does not send these
			continue
		}
		req := f.request("POST", "/", "")
		req.Header["Idempotency-Key"] = []string{tt.value}
		if a := f.send(req); a.status != 400 || a.reason() != "malformed-key" {
			t.Errorf("%.60q: %v", tt.value, a)
		}
	}
	f.wantRuns(1)
	if n := len(f.stored()); n != 1 {
		t.Errorf("%d records", n)
	}
}

// KF-6: without a key each request runs and nothing is recorded, or it is refused
// where a key is required.
func TestKF6_NoKey(t *testing.T) {
	f := newFixture(t, nil, created())
	for range 2 {
		if a := f.send(f.request("POST", "/", "x")); a.status != 201 || a.replayed() {
			t.Errorf("optional: %v", a)
		}
	}
	f.wantRuns(2)
	if n := len(f.stored()); n != 0 {
		t.Errorf("%d records", n)
	}
	f = newFixture(t, &idemhttp.Options{Required: true}, created())
	if a := f.send(f.request("POST", "/", "x")); a.status != 400 || a.reason() != "missing-key" {
		t.Errorf("required: %v", a)
	}
	f.wantRuns(0)
}

// What is read as a key is one, is the same key when it is sent in the other form,
// and is never a part of what was sent.
func FuzzParseKey(f *testing.F) {
	for _, tt := range keyTests {
		f.Add(tt.value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := idemhttp.ParseKey(value)
		if err != nil {
			if key != "" {
				t.Fatalf("%q: %q and %v", value, key, err)
			}
			return
		}
		formatted, err := idemhttp.FormatKey(key)
		if err != nil {
			t.Fatalf("%q is read as %q, which cannot be sent: %v", value, key, err)
		}
		if again, err := idemhttp.ParseKey(formatted); again != key || err != nil {
			t.Fatalf("%q is read as %q, sent as %s, read as %q, %v", value, key, formatted, again, err)
		}
		if bare := strings.Trim(value, " \t"); bare[0] != '"' && bare != key {
			t.Fatalf("the bare %q is read as %q", bare, key)
		}
	})
}
