"""`python -m fairseq_lxsr`: the `lxsr` command, for systems without the scripts on the PATH."""

from fairseq_lxsr.cli.main import main

if __name__ == "__main__":
    main()
