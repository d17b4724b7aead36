import page_models

page_models.write()
