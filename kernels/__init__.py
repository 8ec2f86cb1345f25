"""Operations of the reference runtime. Free of torch and of side effects: other tools probe a folder of this name."""
