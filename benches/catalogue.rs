//! Measures the catalogue of models: reading it, which each process does once, and looking up an id.
#![expect(clippy::unwrap_used, reason = "a benchmark whose setup fails stops at once")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use dutyd::catalogue::{Catalogue, CatalogueFile};

const FILE: &str = include_str!("../src/catalogue/catalogue.json");

fn catalogue(criterion: &mut Criterion) {
    criterion.bench_function("reading the catalogue", |bencher| {
        bencher.iter(|| {
            let file: CatalogueFile = serde_json::from_str(black_box(FILE)).unwrap();
            Catalogue::default().with(vec![file])
        });
    });
    let built_in = Catalogue::built_in().unwrap();
    criterion.bench_function("a lookup of a known id", |bencher| {
        bencher.iter(|| built_in.find(black_box("claude-opus-5-5"), Some("api.anthropic.com")));
    });
    criterion.bench_function("a lookup of an unknown id of a known family", |bencher| {
        bencher.iter(|| built_in.find(black_box("claude-opus-9"), Some("api.anthropic.com")));
    });
}

criterion_group!(benches, catalogue);
criterion_main!(benches);
