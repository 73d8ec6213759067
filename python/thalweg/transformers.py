pass
def patch_transformers(): pass
def unpatch_transformers(): pass
