package main

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

const completionUsage = "idem completion SHELL"

const completionHelp = `The script completes subcommands, flags and the values of flags. For the shells
that are started from now on:

  bash  echo 'eval "$(idem completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(idem completion zsh)"' >> ~/.zshrc, after compinit
  fish  idem completion fish > ~/.config/fish/completions/idem.fish

Exit codes: 0, or 64 for another shell, 74 if the output cannot be written.
`

// Run prints the script.
func (c *completionCommand) Run(s *session, ctx *kong.Context) error {
	verbs := verbsOf(ctx.Model)
	script := map[string]func([]verb) string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell](verbs)
	_, err := fmt.Fprint(s.stdout, script)
	return s.wrote(err)
}

// A verb is a subcommand, as far as a shell has to know it.
type verb struct {
	name, help string
	flags      []flag
	words      []string // what its argument may be, if there is a choice
	runs       bool     // a command follows after --
}

type flag struct {
	name, help string
	short      rune // 0: none
	value      bool // it takes one
	words      []string
	file       bool // the value is the name of a file
}

// verbsOf returns the subcommands of the parser's model.
func verbsOf(model *kong.Application) []verb {
	var verbs []verb
	for _, node := range model.Children {
		v := verb{name: node.Name, help: brush(node.Help), runs: node.Name == "run"}
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				v.flags = append(v.flags, flag{
					name: f.Name, help: brush(f.Help), short: f.Short, value: !f.IsBool(),
					words: choice(f.Value), file: f.Tag.Get("complete") == "file",
				})
			}
		}
		for _, p := range node.Positional {
			v.words = append(v.words, choice(p)...)
		}
		verbs = append(verbs, v)
	}
	return verbs
}

// choice returns the values that there are, if they are listed.
func choice(v *kong.Value) []string {
	var words []string
	for _, word := range v.EnumSlice() {
		if word != "" {
			words = append(words, word)
		}
	}
	return words
}

// brush returns the first sentence of a help text, without what the scripts would
// have to quote.
func brush(help string) string {
	if i := strings.IndexAny(help, ".:;,("); i > 0 {
		help = help[:i]
	}
	return strings.TrimSpace(strings.NewReplacer("'", "", "[", "", "]", "", `"`, "", "$", "").Replace(help))
}

// bashScript returns the script for bash 4 or later.
func bashScript(verbs []verb) string {
	var values, words strings.Builder
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
		all := v.words
		for _, f := range v.flags {
			spelled := "--" + f.name
			all = append(all, spelled)
			if f.short != 0 {
				spelled += fmt.Sprintf("|%s:-%c", v.name, f.short)
				all = append(all, fmt.Sprintf("-%c", f.short))
			}
			switch {
			case f.file:
				fmt.Fprintf(&values, "\t%s:%s) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;\n", v.name, spelled)
			case f.value:
				fmt.Fprintf(&values, "\t%s:%s) mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\"); return ;;\n", v.name, spelled, strings.Join(f.words, " "))
			}
		}
		fmt.Fprintf(&words, "\t%s) words='%s' ;;\n", v.name, strings.Join(all, " "))
	}
	return `# Completion of idem for bash 4 or later.
_idem() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= words= i
	COMPREPLY=()
	((COMP_CWORD > 1)) && verb=${COMP_WORDS[1]}
	if [[ $verb == run ]]; then
		for ((i = 2; i < COMP_CWORD; i++)); do
			[[ ${COMP_WORDS[i]} == -- ]] || continue
			# What comes now is the command, and its arguments.
			if declare -F _command_offset >/dev/null; then
				_command_offset $((i + 1))
			elif ((COMP_CWORD == i + 1)); then
				mapfile -t COMPREPLY < <(compgen -c -- "$cur")
			else
				compopt -o filenames 2>/dev/null
				mapfile -t COMPREPLY < <(compgen -f -- "$cur")
			fi
			return
		done
	fi
	# --flag=value comes as three words.
	if [[ $cur == = ]]; then
		cur=
	elif [[ $prev == = ]]; then
		prev=${COMP_WORDS[COMP_CWORD-2]}
	fi
	case $verb:$prev in
` + values.String() + `	esac
	case $verb in
	'') words='` + strings.Join(names, " ") + ` --help' ;;
` + words.String() + `	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _idem idem
`
}

// zshScript returns the script for zsh, to be evaluated or put into a folder of
// $fpath.
func zshScript(verbs []verb) string {
	var names, cases strings.Builder
	for _, v := range verbs {
		fmt.Fprintf(&names, "\t\t'%s:%s'\n", v.name, v.help)
		fmt.Fprintf(&cases, "\t%s) _arguments -S", v.name)
		for _, f := range v.flags {
			action := ""
			switch {
			case f.file:
				action = "=:" + f.name + ":_files"
			case f.value:
				action = "=:" + f.name + ":(" + strings.Join(f.words, " ") + ")"
			}
			option, _, _ := strings.Cut(action, ":")
			fmt.Fprintf(&cases, " \\\n\t\t'--%s%s[%s]%s'", f.name, option, f.help, strings.TrimPrefix(action, option))
			if f.short != 0 {
				fmt.Fprintf(&cases, " \\\n\t\t'-%c[%s]'", f.short, f.help)
			}
		}
		switch {
		case v.runs:
			cases.WriteString(" \\\n\t\t'*:: :_normal'")
		case len(v.words) > 0:
			fmt.Fprintf(&cases, " \\\n\t\t'1: :(%s)'", strings.Join(v.words, " "))
		}
		cases.WriteString(" ;;\n")
	}
	return `#compdef idem
# Completion of idem for zsh.
_idem() {
	local -a verbs=(
` + names.String() + `	)
	if (( CURRENT == 2 )); then
		_describe -t commands 'command' verbs
		return
	fi
	local verb=$words[2]
	shift words
	(( CURRENT-- ))
	case $verb in
` + cases.String() + `	esac
}
if [[ $funcstack[1] == _idem ]]; then
	_idem "$@"
else
	compdef _idem idem
fi
`
}

// fishScript returns the script for fish.
func fishScript(verbs []verb) string {
	var b strings.Builder
	b.WriteString(`# Completion of idem for fish.
function __idem_verb --description 'whether the subcommand is the one, and its own command has not begun'
	set --local words (commandline --tokenize --cut-at-cursor --current-process)
	test (count $words) -gt 1; and test $words[2] = $argv[1]; and not contains -- -- $words[3..]
end
function __idem_command --description 'whether what is typed is the command of idem run'
	set --local words (commandline --tokenize --cut-at-cursor --current-process)
	test (count $words) -gt 2; and test $words[2] = run; and contains -- -- $words[3..]
end
complete --command idem --no-files
complete --command idem --condition __idem_command --force-files
complete --command idem --condition 'test (count (commandline --tokenize --cut-at-cursor --current-process)) -eq 1' --long-option help --short-option h --description 'Show help'
`)
	for _, v := range verbs {
		fmt.Fprintf(&b, "complete --command idem --condition 'test (count (commandline --tokenize --cut-at-cursor --current-process)) -eq 1' --arguments %s --description '%s'\n", v.name, v.help)
		for _, f := range v.flags {
			fmt.Fprintf(&b, "complete --command idem --condition '__idem_verb %s' --long-option %s", v.name, f.name)
			if f.short != 0 {
				fmt.Fprintf(&b, " --short-option %c", f.short)
			}
			switch {
			case f.file:
				b.WriteString(" --require-parameter --force-files")
			case f.value:
				fmt.Fprintf(&b, " --exclusive --arguments '%s'", strings.Join(f.words, " "))
			}
			fmt.Fprintf(&b, " --description '%s'\n", f.help)
		}
		if len(v.words) > 0 {
			fmt.Fprintf(&b, "complete --command idem --condition '__idem_verb %s' --arguments '%s'\n", v.name, strings.Join(v.words, " "))
		}
	}
	return b.String()
}
