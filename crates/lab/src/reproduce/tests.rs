use super::*;
use crate::experiment::Target;
use std::collections::BTreeSet;

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
    assert!(said.contains("all of a paper: lightnvm, qblk, slc, idiscard, parafs; all;"), "{said}");
    assert_eq!(find("all").unwrap().len(), FIGURES.len());
    // Those of no paper compare all of them.
    let of_papers: usize = PAPERS.iter().map(|paper| find(paper).unwrap().len()).sum();
    assert_eq!(of_papers, FIGURES.iter().filter(|f| !f.name.starts_with("all-")).count());
    assert_eq!(find("qblk-fig7").unwrap().len(), 1);
}

/// Every file system of every figure has room on its device at the full size. A run would say so behind
/// an hour of others; those of the other sizes are soon there.
#[test]
fn every_file_system_of_a_figure_has_room() {
    let mut looked_at = BTreeSet::new();
    for figure in FIGURES {
        let file = figure.file(Size::Full).expect("it is good");
        for part in grid::parts(&file).expect("it is good") {
            let of_files = |target: &&Target| target.fs.is_some();
            let Some(target) = part.experiment.targets.iter().find(of_files) else { continue };
            let (stack, fs) = (&target.stack, &target.fs);
            // It is really made, so each once.
            if !looked_at.insert(format!("{:?} {:?} {fs:?}", stack.device, stack.layers)) {
                continue;
            }
            let problems = crate::check::check(&part.experiment).problems;
            assert!(problems.is_empty(), "{}: {problems:?}", part.name());
        }
    }
    assert!(looked_at.len() > 20, "{}", looked_at.len());
}

/// A size may say where what differs comes from there; others have what the file says.
#[test]
fn causes_are_of_a_size() {
    let text = r#"
causes = ["small blocks"]
mechanism = "lightnvm-fig4"
[size.full]
causes = ["large blocks"]
[[row]]
what = "x"
here = "a x"
"#;
    let causes =
        |size| FigureFile::parse("x.toml", text, size).expect("it is good").causes().to_vec();
    assert_eq!(causes(Size::Small), ["small blocks"]);
    assert_eq!(causes(Size::Full), ["large blocks"]);
    let text = text
        .replace("[size.full]\ncauses = [\"large blocks\"]", "[size.ci]\nset = []\n[size.full]");
    let causes =
        |size| FigureFile::parse("x.toml", &text, size).expect("it is good").causes().to_vec();
    assert!(causes(Size::Ci).is_empty() && causes(Size::Full) == ["small blocks"]);
}
