"""Self-supervised learning on the patient > slide > patch hierarchy of biomedical microscopy.

The names below are the public Python API. They load when first used, so that `import hidisc` has no cost and no effect.
A function that is a command (`prepare` is `hidisc prepare`) reads one artefact from disk and writes the next.

Commands:

- `draft_cohort`: draft the table of a cohort from a folder of slides.
- `prepare`: cut the slides of a cohort into patches and write a `PatchStore`.
- `import_patches`: pack patches that exist as files into a `PatchStore`.
- `import_volumes`: make a store from the slices of NIfTI or DICOM volumes.
- `import_features`: make `Embeddings` from features that another tool has extracted, without a store.
- `train`: train an encoder on the patches of a store and write a `Run`.
- `embed`: compute the vectors of a store's patches with any encoder and write `Embeddings`.
- `evaluate`: measure on held-out patients what embeddings tell of the labels and write `Scores`.
- `predict_unlabelled`: predict the label of patients who have none, from the reference patients of scores.
- `audit`: measure what encoders owe to site, scanner, batch, date and colour and write an `Audit`.
- `report`: write one HTML page on evaluations, with every figure and table beside it.
- `explore`: show a store, its embeddings and scores in a browser, and take labels there.
- `heatmap`: draw the scores of a slide's patches over its thumbnail.
- `export`: write the encoder of a run for timm, ONNX, TorchScript or torch.export, with a model card.
- `export_wsinfer`: write the encoder of a run and a linear probe as a classifier for WSInfer and QuPath.
- `export_bags`: write embeddings as files per slide, for CLAM, TRIDENT and STAMP.
- `export_geojson`: write embeddings or scores as boxes on slides, for QuPath.
- `export_anndata`: write embeddings as AnnData, for scanpy.
- `benchmark`: train and evaluate every row of a suite and write one page.

Artefacts and tables, opened with `load(path)`:

- `Cohort`: the slides of a study, read from a CSV file and checked.
- `PatchStore`: the patches of a cohort, read in any order.
- `PatchTable`: one row per patch: patient, slide, label, split, position.
- `Run`: a finished training: its encoder, settings and metrics.
- `Encoder`: a backbone with its projection, as a PyTorch module.
- `Embeddings`: one vector per patch beside the table of patches.
- `Scores`: a finished evaluation: its probes, metrics and warnings.
- `Audit`: a finished audit: what every technical variable does to every encoder.
- `Predictions`: truth and scores of the patches, slides or patients of one evaluation.

Settings, one class per command:

- `load_config`: read settings from defaults, recipes and changes such as `optim.steps=100`.
- `PrepareConfig`: settings of `prepare`.
- `ImportConfig`: settings of `import_patches`.
- `VolumesConfig`: settings of `import_volumes`.
- `FeaturesConfig`: settings of `import_features`.
- `TrainConfig`: settings of `train`.
- `EmbedConfig`: settings of `embed`.
- `EvaluateConfig`: settings of `evaluate`.
- `AuditConfig`: settings of `audit`.
- `ReportConfig`: settings of `report`.
- `SuiteConfig`: settings of `benchmark`.

Parts, for programs of your own:

- `open_slide`: open a slide file of any supported format.
- `draw_cohort`: draw a small cohort of slides, to try things on.
- `find_folder`: find patches stored as `patient/slide/patch.png`, for `import_patches`.
- `find_table`: find patches listed in a CSV file, for `import_patches`.
- `find_nifti`: find volumes stored as `patient/scan.nii.gz`, for `import_volumes`.
- `find_dicom`: find the series of a folder of DICOM files, for `import_volumes`.
- `find_opensrh`: find the patches of the OpenSRH data set, for `import_patches`.
- `split_patients`: divide patients into splits, stratified by label.
- `Hierarchy`: the levels from patient to patch, and who belongs to whom.
- `make_views`: make random augmented views of patches.
- `hidisc_loss`: the loss of hierarchical discrimination, equations 1 to 4 of the paper.
- `find_neighbours`: exact nearest neighbours of vectors, in bounded memory.
- `compare`: how much better one model is than another, with an interval over patients.
- `UserError`: the error that says what is wrong with an input and how to fix it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
