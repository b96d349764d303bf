"""Extensions of muster, each in a folder that holds all of it. The core imports none of them."""
