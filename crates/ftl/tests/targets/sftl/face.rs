//! The segments as a block device.

use super::*;
use flashlane_ftl::layer::{Layer, Seam};

async fn io(
    dev: &dyn BlockDev,
    cx: &Cx,
    op: BlockOp,
    lba: u64,
    n: u32,
    buf: &mut [u8],
) -> BlockResult {
    dev.start(cx, Io::of(op, Lba::new(lba), n, false, buf)).await
}

#[test]
fn segments_are_written_in_order_and_trimmed_as_a_whole() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        let face = ftl.face();
        let (layout, info) = (face.layout(), face.info().clone());
        let full = u64::from(layout.segment_sectors);
        assert_eq!(info.capacity, layout.meta_sectors + ftl.info().sectors());
        assert_eq!(layout.segment_at(0, 0), layout.meta_sectors);
        assert_eq!(layout.segment_at(1, 0), layout.meta_sectors + full);
        assert_eq!(layout.segment_at(0, 1), layout.meta_sectors + 2 * full);
        // From the last sectors of the region over two segments, in one write.
        let (lba, n) = (layout.meta_sectors - 3, full as u32 + 3 + 4);
        let mut bytes = filled(lba, n, 1, 8);
        io(&*face, &cx, BlockOp::Write, lba, n, &mut bytes).await.expect("in order");
        assert_eq!((ftl.write_pointer(0, 0), ftl.write_pointer(1, 0)), (full as u32, 4));
        // Anywhere else is refused, and changes nothing.
        let second = layout.segment_at(1, 0);
        for (lba, n) in [(second, 4), (second + 2, 2), (second + 6, 2), (second + 4, 3)] {
            let mut bytes = filled(lba, n, 2, 8);
            let refused = io(&*face, &cx, BlockOp::Write, lba, n, &mut bytes).await;
            assert!(matches!(refused, Err(BlockError::Invalid { .. })), "{lba} {n}: {refused:?}");
        }
        // A write that would be in order in one segment and not in the other is no half write.
        let mut bytes = filled(second + 4, full as u32 - 4 + 3, 2, 8);
        let n = full as u32 - 4 + 3;
        assert!(io(&*face, &cx, BlockOp::Write, second + 4, n, &mut bytes).await.is_err());
        assert_eq!(ftl.write_pointer(1, 0), 4);
        let mut got = vec![0xa5; (n as usize + 4 + 3) * 8];
        let total = full as u32 + 3 + full as u32;
        got.resize(total as usize * 8, 0xa5);
        io(&*face, &cx, BlockOp::Read, lba_of_first(&layout), total, &mut got)
            .await
            .expect("a read");
        let mut want = filled(layout.meta_sectors - 3, full as u32 + 3 + 4, 1, 8);
        want.resize(total as usize * 8, 0);
        assert!(got == want, "what was written, then zeros");
        let extent = face.extent(Lba::new(second), 100);
        assert!(extent.holds && extent.sectors == 4);
        assert!(!face.extent(Lba::new(second + 4), 100).holds);
        io(&*face, &cx, BlockOp::Flush, 0, 0, &mut []).await.expect("a flush");
        // A discard of parts of both does nothing; of one whole segment it is a trim.
        let first = layout.segment_at(0, 0);
        io(&*face, &cx, BlockOp::Discard, first + 1, full as u32 + 3, &mut []).await.expect("none");
        assert_eq!((ftl.write_pointer(0, 0), ftl.write_pointer(1, 0)), (full as u32, 4));
        io(&*face, &cx, BlockOp::Discard, first, full as u32 + 2, &mut []).await.expect("a trim");
        assert_eq!((ftl.write_pointer(0, 0), ftl.write_pointer(1, 0)), (0, 4));
        let mut got = vec![0xa5; 64];
        io(&*face, &cx, BlockOp::Read, first, 8, &mut got).await.expect("a read");
        assert!(got.iter().all(|b| *b == 0));
    });
}

fn lba_of_first(layout: &flashlane_ftl::sftl::FaceLayout) -> u64 {
    layout.meta_sectors - 3
}

/// A write with FUA, and a flush, survive where pairs take pages along.
#[test]
fn a_flush_closes_pairs() {
    for fua in [true, false] {
        let drive = Drive::new(&paired(), "");
        drive.created(move |cx, ftl| async move {
            let dev = Seam::Segments(ftl.clone()).block();
            let first = dev.info().capacity - ftl.info().sectors();
            let bytes = filled(first, 4, 1, 8);
            dev.start(&cx, Io::write(Lba::new(first), 4, fua, &bytes)).await.expect("a write");
            if !fua {
                dev.start(&cx, Io::flush()).await.expect("a flush");
            }
            // Pages behind it, torn by the end of this life.
            let pointer = ftl.write_pointer(0, 0);
            assert!(pointer > 4);
            let torn = Io::write(Lba::new(first + u64::from(pointer)), 4, false, &bytes);
            let torn = dev.start(&cx, torn);
            cx.sleep(Ns::from_us(600)).await;
            drop(torn);
        });
        drive.mounted(|cx, ftl| async move {
            let dev = ftl.face();
            let first = dev.layout().meta_sectors;
            let mut got = [0; 32];
            dev.start(&cx, Io::read(Lba::new(first), 4, &mut got)).await.expect("a read");
            assert!(got[..] == filled(first, 4, 1, 8));
        });
    }
}

#[test]
fn the_layer_says_where_a_sector_lies_and_stops() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        let (layer, dev): (Arc<dyn Layer>, _) = (ftl.clone(), ftl.face());
        let first = dev.layout().segment_at(1, 2);
        assert_eq!(layer.locate(first), None);
        let before = layer.stats().expect("it programs flash").host_written;
        put(&ftl, &cx, (1, 2), 1, 4).await.expect("an append");
        let at = layer.locate(first + 3).expect("it lies somewhere");
        assert_eq!((at.pu, at.sector), (1, 3));
        assert!(layer.kind().in_order());
        assert!(layer.stats().is_some_and(|s| s.host_written == before + 4));
        layer.walk().unwrap();
        let stop = flashlane_ftl::layer::Stop::Clean;
        layer.clone().stop(&cx, stop).await.expect("everything is durable");
    });
    drive.mounted(|_, ftl| async move {
        let found = Layer::recovered(&*ftl).expect("a mount");
        assert!(found.found, "{}", found.how);
        assert_eq!(found.numbers["segments"], 1);
    });
}
