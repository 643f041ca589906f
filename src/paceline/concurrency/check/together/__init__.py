"""Small projects, read as one program: files that import each other become one syntax tree, which every rule reads.

    files ─► programs: closed under imports ─► one tree each, imports replaced by what they name ─► every rule
                                                                                                        │
    findings of each file  ◄─────────────────── places and names looked up again ───────────────────────┘

A program is read as if it were one file: locks, types, threads and callers are followed through it by the same
analysis, and nothing of it is linked afterwards. Files of larger projects are read one by one and linked by `across`.
"""
