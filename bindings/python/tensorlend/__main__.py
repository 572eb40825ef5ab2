"""`python -m tensorlend`: the command-line tool."""

from tensorlend._programs import tool

if __name__ == "__main__":
    tool()
