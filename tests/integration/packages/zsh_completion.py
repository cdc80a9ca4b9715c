"""What an interactive zsh makes of unfinished command lines when Tab is pressed.

Usage: zsh_completion.py SET_UP LINE ...
SET_UP is a command that the shell runs first. Prints each line as it is then; choices that zsh only lists follow it.
"""
import os
import pty
import re
import sys
import termios

# Ctrl-X d prints the line that is being edited, between marks; Ctrl-U forgets it.
SET_UP = r"""
PROMPT=''; unsetopt PROMPT_SP ZLE_BRACKETED_PASTE; TERM=dumb
autoload -U compinit; compinit -u -D
zstyle ':completion:*' menu no
MORE
_show() { print -rn -- $'\x01'"$BUFFER"$'\x02' }
zle -N _show; bindkey '^Xd' _show; bindkey '^U' kill-whole-line
print -n $'\x01'ready$'\x02'
"""


def read_to_mark(terminal, before=b""):
    while b"\x02" not in before:
        before += os.read(terminal, 4096)
    return before


def main():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("zsh", ["zsh", "-f", "-i"])
    window = termios.tcgetattr(terminal)
    window[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, window)
    os.write(terminal, SET_UP.replace("MORE", sys.argv[1]).replace("\n", "\r").encode())
    while b"\x01ready\x02" not in (got := read_to_mark(terminal)):
        pass
    for line in sys.argv[2:]:
        os.write(terminal, b"\x15" + line.encode() + b"\t\x18d")
        got = read_to_mark(terminal)
        listed, _, edited = got.partition(b"\x01")
        listed = listed.replace(b"^Xd", b"")  # the terminal's echo, while zsh runs a command to complete
        words = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x07|\r", b" ", listed).decode().replace(line, " ").split()
        print(edited.split(b"\x02")[0].decode().rstrip(), *(words if len(words) > 1 else []))
    os.write(terminal, b"\x15exit\r")
    os.waitpid(pid, 0)


main()
