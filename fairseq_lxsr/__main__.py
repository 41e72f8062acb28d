"""`python -m fairseq_lxsr`: the `lxsr` command, where the folder of scripts is not on the PATH."""

from fairseq_lxsr.cli.main import main

if __name__ == "__main__":
    main()
