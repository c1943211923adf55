//go:build unix

package main

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/idem-go/idem/internal/testenv"
)

// completions are command lines, the last word of which is being typed, and some
// of what it is completed to, or, after a minus, is not.
var completions = map[string]string{
	"":                                      "run show list resolve forget sweep migrate completion",
	"re":                                    "resolve -run -forget",
	"run --":                                "--key --store --on-lapse -run -show -takeover",
	"run --on-lapse ":                       "takeover hold",
	"run --on-lapse h":                      "hold -takeover",
	"run --key list --on-lapse h":           "hold -takeover",
	"list --st":                             "--status --store -list",
	"list --status ":                        "in-progress completed released",
	"resolve --body-file le":                "letter.txt -ledger",
	"show --store le":                       "letter.txt",
	"completion ":                           "bash zsh fish",
	"migrate --i":                           "--init -issue",
	"run --key k --no-wait -- cat le":       "letter.txt -list",
	"run --key --status --no-wait -- sh --": "-key",
}

// complete completes each line of completions in a shell.
func complete(t *testing.T, shell string, ask func(b *box, path string, lines []string) map[string][]string) {
	path, err := exec.LookPath(shell)
	if err != nil {
		testenv.Skip(t, shell, "no %s: %v", shell, err)
	}
	b := newBox(t)
	b.write("letter.txt", "")
	d := b.idem("completion", shell)
	if d.code != 0 || d.stderr != "" {
		t.Fatal(d)
	}
	b.write("script", d.stdout)
	answers := ask(b, path, slices.Collect(maps.Keys(completions)))
	for line, want := range completions {
		got := answers[line]
		for word := range strings.FieldsSeq(want) {
			if not, ok := strings.CutPrefix(word, "-"); ok && !strings.HasPrefix(not, "-") {
				if slices.ContainsFunc(got, func(s string) bool { return strings.TrimLeft(s, "-") == not }) {
					t.Errorf("%q is completed to %q, with %s", line, got, not)
				}
			} else if !slices.Contains(got, word) {
				t.Errorf("%q is completed to %q, without %s", line, got, word)
			}
		}
	}
}

// sourcing returns a function that asks a shell for one line after the other, by a
// program that gets the words of the line as its arguments and prints the choices.
func sourcing(args ...string) func(b *box, path string, lines []string) map[string][]string {
	return func(b *box, path string, lines []string) map[string][]string {
		b.t.Helper()
		answers := make(map[string][]string)
		for _, line := range lines {
			words := append([]string{"idem"}, strings.Split(line, " ")...)
			cmd := exec.CommandContext(b.t.Context(), path, append(args, words...)...)
			cmd.Dir, cmd.Env = b.dir, b.env
			d := finish(b.t, cmd, nil)
			if d.code != 0 || d.stderr != "" {
				b.t.Errorf("%q: %v", line, d)
			}
			for choice := range strings.Lines(d.stdout) {
				choice, _, _ = strings.Cut(strings.TrimSuffix(choice, "\n"), "\t") // fish explains
				answers[line] = append(answers[line], choice)
			}
		}
		return answers
	}
}

func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	complete(t, "bash", sourcing("--norc", "-c", `source ./script
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		_idem && [[ ${#COMPREPLY[@]} == 0 ]] || printf '%s\n' "${COMPREPLY[@]}"`, "-"))
	// What bash itself makes of --flag=value.
	b := newBox(t)
	b.write("script", b.idem("completion", "bash").stdout)
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", `source ./script
		complete -p idem
		COMP_WORDS=(idem list --status = comp) COMP_CWORD=4 && _idem && echo "${COMPREPLY[@]}"
		COMP_WORDS=(idem list --status =) COMP_CWORD=3 && _idem && echo "${COMPREPLY[@]}"`)
	cmd.Dir, cmd.Env = b.dir, b.env
	finish(t, cmd, nil).expect(t, 0, "complete -F _idem idem\ncompleted\nin-progress completed released\n")
}

func TestCompletionInFish(t *testing.T) {
	t.Parallel()
	complete(t, "fish", sourcing("--no-config", "-c", `source ./script; complete --do-complete (string join ' ' -- $argv)`))
}

// zsh completes in its line editor only. A second zsh in a pseudo terminal of zsh's
// own tells what it has found for each line.
func TestCompletionInZsh(t *testing.T) {
	t.Parallel()
	complete(t, "zsh", func(b *box, path string, lines []string) map[string][]string {
		cmd := exec.CommandContext(t.Context(), path, append([]string{"-f", "-c", zshHarness, "-"}, lines...)...)
		cmd.Dir, cmd.Env = b.dir, b.env
		d := finish(t, cmd, nil)
		if d.code != 0 || d.stderr != "" {
			t.Fatal(d)
		}
		answers := make(map[string][]string)
		line := -1
		for s := range strings.Lines(d.stdout) {
			if s = strings.TrimSuffix(s, "\n"); s == "line" {
				line++
			} else if choice, ok := strings.CutPrefix(s, "choice "); ok {
				answers[lines[line]] = append(answers[lines[line]], choice)
			}
		}
		return answers
	})
}

// What the second zsh prints begins with two letters that its input, which may be
// echoed, has not next to each other.
const zshHarness = `
zmodload zsh/zpty || exit 9
zpty shell zsh -f -i
zpty -w shell 'PROMPT=; unsetopt zle_bracketed_paste beep; stty -echo; autoload -Uz compinit; compinit -D -u; eval "$(<script)"'
zpty -w shell 'capture() {
	compadd() {
		if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
		local -a found; builtin compadd -A found "$@"; print -rl -- "" "=>"${^found}; builtin compadd "$@"
	}
	_main_complete; compstate[insert]= compstate[list]=; print -r -- "" "=""end"
}
zle -C capture complete-word capture; bindkey "^X" capture; print "=""ready"'
zpty -r shell answer '*=ready'
for line; do
	zpty -w -n shell $'\x15'"idem $line"$'\x18' # in an empty line
	zpty -r shell answer '*=end'
	print line
	print -rl -- "choice "${^${(M)${(f)${answer//$'\r'/}}:#=>*}#=>}
done
zpty -d shell
`
