"""Different spellings of the same text."""

# Pairs: the most common spelling, and one of some keyboards, programs or habits.
SPELLINGS = [
    ("Am 12.3.2026 um 45 %", "Am ١٢.٣.٢٠٢٦ um ४५ %"),
    ("این یک کتاب است", "اين يك كتاب است"),
    ("أحمد إلى القاهرة آخر", "احمد الي القاهره اخر"),
    ("Καλημέρα κόσμε, τι ώρα είναι;", "ΚΑΛΗΜΕΡΑ ΚΟΣΜΕ, ΤΙ ΩΡΑ ΕΙΝΑΙ;"),
    ("แม่น้ำ", "เเมน\u0e48\u0e4d\u0e49า".replace("น\u0e48", "\u0e48น")),
    ("București, știință", "Bucureşti, ştiinţă"),
    ("ILIK ırmak", "ilik irmak"),
    ("Die Straße ist groß", "Die Strasse ist gross"),
    ("Œuvre, œil", "Oeuvre, oeil"),
    ("ещё один ёж", "еще один еж"),
    ("ज़रूर लड़का हूँ", "जरूर लडका हूं"),
    ("שָׁלוֹם עוֹלָם", "שלום עולם"),
    ("hoà bình, thuỷ, khoẻ", "hòa bình, thủy, khỏe"),
    ("it's a “test” – 5−3", 'it`s a "test" - 5-3'),
    ("l'école d'été", "l’école d‘été"),
]
