use super::*;

/// Each figure's file is complete, at every size.
#[test]
fn every_figure_has_a_good_file() {
    for figure in FIGURES {
        for size in [Size::Ci, Size::Small, Size::Full] {
            let file = figure.file(size);
            assert!(file.is_ok(), "{}: {}", figure.name, file.unwrap_err());
        }
    }
    assert!(list().contains("lightnvm-table1"));
    let said = find("lightnvm-table2").map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("did you mean `lightnvm-table1`"), "{said}");
    assert_eq!(find("all").unwrap().len(), FIGURES.len());
}
