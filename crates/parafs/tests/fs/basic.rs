//! One thing at a time.

use flashlane_parafs::{Change, Fallocate, FsError, New, ROOT, Rename, Seek, Set};
use flashlane_testkit::files::{
    DIR, FILE, LINK, content, create, make, mount, new, now, ram, run, sound,
};

#[test]
fn files_are_there_behind_an_unmount() {
    for page_sectors in [1, 2, 4] {
        run(1, async move |cx| {
            let device = ram(32, 1);
            make(&cx, &device, page_sectors).await;
            sound(&cx, &device).await;
            let fs = mount(&cx, &device).await;
            let dir = create(&cx, &fs, ROOT, "dir", DIR).await;
            let small = create(&cx, &fs, dir.ino, "small", FILE).await;
            let large = create(&cx, &fs, ROOT, "large", FILE).await;
            let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
            fs.write(&cx, small.ino, 0, b"hello", now(&cx)).await.expect("room");
            fs.write(&cx, large.ino, 12_345, &bytes, now(&cx)).await.expect("room");
            let target = New { target: b"dir/small".to_vec(), ..new(LINK) };
            let link = fs.create(&cx, ROOT, b"link", &target, now(&cx)).await.expect("room");
            fs.unmount(&cx).await.expect("it is written");
            let again = fs.write(&cx, small.ino, 0, b"x", now(&cx)).await;
            assert!(matches!(again, Err(FsError::ReadOnly(_))), "{again:?}");

            let report = sound(&cx, &device).await;
            assert!(report.clean);
            assert_eq!((report.files, report.directories), (3, 2));
            let fs = mount(&cx, &device).await;
            let found = fs.lookup(&cx, dir.ino, b"small").await.expect("it is there");
            assert_eq!((found.ino, found.size, found.uid), (small.ino, 5, 1000));
            assert_eq!(content(&cx, &fs, small.ino).await, b"hello");
            let found = content(&cx, &fs, large.ino).await;
            assert!(found[..12_345].iter().all(|b| *b == 0) && found[12_345..] == bytes);
            assert_eq!(fs.read_link(&cx, link.ino).await, Ok(b"dir/small".to_vec()));
            assert_eq!(fs.parent(&cx, dir.ino).await, Ok(ROOT));
        });
    }
}

#[test]
fn names_follow_the_rules() {
    run(2, async |cx| {
        let device = ram(32, 2);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let a = create(&cx, &fs, ROOT, "a", DIR).await.ino;
        let b = create(&cx, &fs, a, "b", DIR).await.ino;
        let f = create(&cx, &fs, b, "f", FILE).await.ino;
        let links = |ino| {
            let (fs, cx) = (fs.clone(), cx.clone());
            async move { fs.attributes(&cx, ino).await.expect("it is there").links }
        };
        assert_eq!((links(ROOT).await, links(a).await, links(b).await), (3, 3, 2));
        let rename = async |from: (u32, &str), to: (u32, &str), how| {
            let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
            fs.rename(&cx, from, to, how, t).await
        };
        let below = Err(FsError::Invalid("a directory below itself"));
        assert_eq!(rename((ROOT, "a"), (b, "x"), Rename::Replace).await, below);
        assert_eq!(rename((ROOT, "a"), (ROOT, "a"), Rename::Replace).await, Ok(()));
        let g = create(&cx, &fs, ROOT, "g", FILE).await.ino;
        let taken = rename((b, "f"), (ROOT, "g"), Rename::NoReplace).await;
        assert_eq!(taken, Err(FsError::Exists));
        assert_eq!(rename((b, "f"), (ROOT, "g"), Rename::Exchange).await, Ok(()));
        assert_eq!(fs.lookup(&cx, ROOT, b"g").await.map(|f| f.ino), Ok(f));
        assert_eq!(fs.lookup(&cx, b, b"f").await.map(|f| f.ino), Ok(g));
        assert_eq!(rename((ROOT, "a"), (ROOT, "g"), Rename::Exchange).await, Ok(()));
        assert_eq!(rename((ROOT, "g"), (ROOT, "a"), Rename::Exchange).await, Ok(()));
        let kind = rename((ROOT, "g"), (ROOT, "a"), Rename::Replace).await;
        assert_eq!(kind, Err(FsError::IsDirectory));
        let kind = rename((ROOT, "a"), (ROOT, "g"), Rename::Replace).await;
        assert_eq!(kind, Err(FsError::NotDirectory));
        assert_eq!(rename((a, "b"), (ROOT, "b"), Rename::Replace).await, Ok(()));
        assert_eq!((links(ROOT).await, links(a).await), (4, 2));
        assert_eq!(fs.parent(&cx, b).await, Ok(ROOT));
        assert_eq!(fs.rmdir(&cx, ROOT, b"b", t).await, Err(FsError::NotEmpty));
        assert_eq!(fs.unlink(&cx, ROOT, b"b", t).await, Err(FsError::IsDirectory));
        assert_eq!(fs.rmdir(&cx, b, b"f", t).await, Err(FsError::NotDirectory));
        assert_eq!(fs.unlink(&cx, b, b"f", t).await, Ok(()));
        assert_eq!(fs.rmdir(&cx, ROOT, b"b", t).await, Ok(()));
        assert_eq!(fs.attributes(&cx, b).await, Err(FsError::Stale));
        assert_eq!(links(ROOT).await, 3);
        let long = [b'n'; 256];
        let made = fs.create(&cx, ROOT, &long, &new(FILE), t).await;
        assert_eq!(made, Err(FsError::NameTooLong));
        let made = fs.create(&cx, ROOT, &long[1..], &new(FILE), t).await;
        let other = fs.link(&cx, made.expect("255 will do").ino, ROOT, b"other", t).await;
        assert_eq!(other.map(|f| f.links), Ok(2));
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

#[test]
fn a_directory_of_many_names_is_read_from_any_place() {
    run(3, async |cx| {
        let device = ram(64, 3);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let dir = create(&cx, &fs, ROOT, "dir", DIR).await.ino;
        let name = |i: u32| format!("a file with the number {i}");
        for i in 0..3000 {
            create(&cx, &fs, dir, &name(i), FILE).await;
        }
        for i in (0..3000).step_by(3) {
            fs.unlink(&cx, dir, name(i).as_bytes(), now(&cx)).await.expect("it is there");
        }
        let mut names = Vec::new();
        let mut at = 0;
        loop {
            let some = fs.read_dir(&cx, dir, at, 17).await.expect("it is read");
            let Some(last) = some.last() else { break };
            at = last.next;
            names.extend(some.into_iter().map(|e| String::from_utf8(e.name).expect("text")));
        }
        let mut wanted: Vec<String> = (0..3000).filter(|i| i % 3 != 0).map(name).collect();
        names.sort();
        wanted.sort();
        assert_eq!(names, wanted);
        fs.unmount(&cx).await.expect("it is written");
        let report = sound(&cx, &device).await;
        assert_eq!(report.files, 2000);
    });
}

#[test]
fn an_open_file_without_a_name_lives_until_it_is_released() {
    run(4, async |cx| {
        let device = ram(32, 4);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.open(&cx, f).await.expect("it is there");
        fs.write(&cx, f, 0, &[7; 50_000], now(&cx)).await.expect("room");
        fs.unlink(&cx, ROOT, b"f", now(&cx)).await.expect("it is there");
        fs.sync(&cx).await.expect("it is written");
        let full = fs.space().free;
        assert_eq!(content(&cx, &fs, f).await, [7; 50_000]);
        assert_eq!(sound(&cx, &device).await.files, 1);
        fs.release(&cx, f).await.expect("it was open");
        assert_eq!(fs.attributes(&cx, f).await, Err(FsError::Stale));
        assert!(fs.space().free >= full + 13);
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(sound(&cx, &device).await.files, 0);
    });
}

#[test]
fn holes_and_kept_room_read_as_zeros() {
    run(5, async |cx| {
        let device = ram(32, 5);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 0, &[1; 40_960], t).await.expect("room");
        fs.fsync(&cx, f, false).await.expect("it is written");
        let blocks = async || fs.attributes(&cx, f).await.expect("it is there").blocks;
        let all = blocks().await;
        let punch = Fallocate::Punch;
        fs.fallocate(&cx, f, (5000, 20_000), punch, true, t).await.expect("a hole");
        assert_eq!(all - blocks().await, 4 * 8);
        let mut wanted = vec![1; 40_960];
        wanted[5000..25_000].fill(0);
        assert_eq!(content(&cx, &fs, f).await, wanted);
        assert_eq!(fs.seek(&cx, f, 0, Seek::Hole).await, Ok(Some(8192)));
        assert_eq!(fs.seek(&cx, f, 9000, Seek::Data).await, Ok(Some(24_576)));
        assert_eq!(fs.seek(&cx, f, 30_000, Seek::Hole).await, Ok(Some(40_960)));
        assert_eq!(fs.seek(&cx, f, 50_000, Seek::Data).await, Ok(None));
        fs.fallocate(&cx, f, (0, 100_000), Fallocate::Keep, true, t).await.expect("room");
        assert_eq!(content(&cx, &fs, f).await, wanted);
        fs.fallocate(&cx, f, (10, 100_000), Fallocate::Zero, false, t).await.expect("room");
        wanted.resize(100_010, 0);
        wanted[10..].fill(0);
        assert_eq!(content(&cx, &fs, f).await, wanted);
        // What was behind an end is not there when the file grows again.
        fs.write(&cx, f, 50_000, &[3; 20_000], t).await.expect("room");
        fs.truncate(&cx, f, 51_000, t).await.expect("it is shorter");
        fs.truncate(&cx, f, 90_000, t).await.expect("it is longer");
        wanted.resize(90_000, 0);
        wanted[50_000..51_000].fill(3);
        assert_eq!(content(&cx, &fs, f).await, wanted);
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
        let fs = mount(&cx, &device).await;
        assert_eq!(content(&cx, &fs, f).await, wanted);
    });
}

/// An `fallocate` or a zeroing for which there is too little room changes nothing.
#[test]
fn an_fallocate_without_room_takes_none() {
    run(15, async |cx| {
        let device = ram(32, 15);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.write(&cx, f, 1 << 20, &[1; 40_960], t).await.expect("room");
        let before = fs.space();
        let all = before.free * u64::from(before.page_bytes);
        for (offset, bytes) in [(0, 1 << 40), (1 << 30, all), (5000, all + 60_000)] {
            let kept = fs.fallocate(&cx, f, (offset, bytes), Fallocate::Keep, false, t).await;
            assert_eq!(kept, Err(FsError::NoSpace), "{bytes} bytes");
            assert_eq!(fs.space().free, before.free, "{bytes} bytes");
            let size = fs.attributes(&cx, f).await.expect("it is there").size;
            assert_eq!(size, (1 << 20) + 40_960);
        }
        // A new file has what statfs(2) calls available.
        let g = create(&cx, &fs, ROOT, "g", FILE).await.ino;
        let all_available = fs.space().available * u64::from(before.page_bytes);
        let keep = fs.fallocate(&cx, g, (0, all_available), Fallocate::Keep, false, t).await;
        assert_eq!(keep, Ok(()));
        assert!(fs.space().free < 8, "and nearly all there is: {:?}", fs.space());
        fs.unlink(&cx, ROOT, b"g", t).await.expect("it is there");
        // What it would make zeros of stays as it is, too.
        let zeroed = fs.fallocate(&cx, f, (0, all + 60_000), Fallocate::Zero, false, t).await;
        assert_eq!(zeroed, Err(FsError::NoSpace));
        let mut some = [0; 8];
        assert_eq!(fs.read(&cx, f, 1 << 20, &mut some).await, Ok(8));
        assert_eq!(some, [1; 8]);
        fs.fallocate(&cx, f, (0, all / 2), Fallocate::Keep, false, t).await.expect("room");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

/// One file can have all that statfs(2) calls available, also where it has many nodes below others.
#[test]
fn what_is_available_can_be_kept() {
    run(16, async |cx| {
        let device = ram(200, 16);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        let before = fs.space();
        let all = (0, before.available * u64::from(before.page_bytes));
        let kept = fs.fallocate(&cx, f, all, Fallocate::Keep, false, now(&cx)).await;
        assert_eq!(kept, Ok(()), "of {before:?}");
        assert!(fs.space().free < 8, "{:?}", fs.space());
    });
}

#[test]
fn a_file_of_a_tebibyte_has_a_few_pages() {
    run(6, async |cx| {
        let device = ram(32, 6);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        let far = (1 << 40) + 4096 * 7;
        for at in [0, 1 << 22, 1 << 24, 1 << 33, far] {
            fs.write(&cx, f, at, &[9; 100], t).await.expect("room");
        }
        fs.fsync(&cx, f, false).await.expect("it is written");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
        let fs = mount(&cx, &device).await;
        let mut some = [0; 200];
        assert_eq!(fs.read(&cx, f, far, &mut some).await, Ok(100));
        assert_eq!(some[..100], [9; 100]);
        assert_eq!(fs.read(&cx, f, 1 << 39, &mut some).await, Ok(200));
        assert_eq!(some, [0; 200]);
        fs.truncate(&cx, f, 1 << 23, t).await.expect("it is shorter");
        assert!(fs.attributes(&cx, f).await.expect("it is there").blocks < 8 * 8);
        let beyond = fs.write(&cx, f, u64::MAX / 2, b"x", t).await;
        assert_eq!(beyond, Err(FsError::TooLarge));
        fs.unlink(&cx, ROOT, b"f", t).await.expect("it is there");
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(sound(&cx, &device).await.nodes, 1);
    });
}

#[test]
fn attributes_stay() {
    run(7, async |cx| {
        let device = ram(32, 7);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        let set = async |name: &str, value: &[u8], how| {
            fs.set_xattr(&cx, f, (name.as_bytes(), value), how, t).await
        };
        assert_eq!(set("user.a", b"1", Set::Replace).await, Err(FsError::NoAttribute));
        assert_eq!(set("user.a", b"1", Set::Create).await, Ok(()));
        assert_eq!(set("user.a", b"2", Set::Create).await, Err(FsError::Exists));
        assert_eq!(set("user.b", &[5; 1000], Set::Any).await, Ok(()));
        assert_eq!(set("user.c", &[5; 4000], Set::Any).await, Err(FsError::AttributeSpace));
        let change = Change { mode: Some(0o4_711), uid: Some(3), ..Change::default() };
        let changed = fs.change(&cx, f, &change, t).await.expect("it is there");
        assert_eq!((changed.mode, changed.uid, changed.gid), (0o104_711, 3, 100));
        fs.fsync(&cx, f, false).await.expect("it is written");
        drop(fs);
        // No unmount: a checkpoint has it.
        let fs = mount(&cx, &device).await;
        let names = vec![b"user.a".to_vec(), b"user.b".to_vec()];
        assert_eq!(fs.xattr_names(&cx, f).await, Ok(names));
        assert_eq!(fs.xattr(&cx, f, b"user.b").await, Ok(vec![5; 1000]));
        assert_eq!(fs.remove_xattr(&cx, f, b"user.b", t).await, Ok(()));
        assert_eq!(fs.xattr(&cx, f, b"user.b").await, Err(FsError::NoAttribute));
        assert_eq!(fs.attributes(&cx, f).await.map(|a| a.mode), Ok(0o104_711));
        fs.unlink(&cx, ROOT, b"f", t).await.expect("it is there");
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(sound(&cx, &device).await.nodes, 1);
    });
}

/// An access control list: the permissions of the owner, user 12345, the group, the mask, others.
fn acl([owner, user, group, mask, others]: [u16; 5]) -> Vec<u8> {
    let entries = [(1, owner), (2, user), (4, group), (16, mask), (32, others)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions) in entries {
        let id: u32 = if tag == 2 { 12_345 } else { u32::MAX };
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(permissions));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// An access control list that says what the permissions of a mode say.
fn minimal_acl([owner, group, others]: [u16; 3]) -> Vec<u8> {
    let whole = acl([owner, 0, group, 0, others]);
    [&whole[..12], &whole[20..28], &whole[36..]].concat()
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn permissions_and_an_access_control_list_agree() {
    run(9, async |cx| {
        let device = ram(16, 9);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        let mode = async || fs.attributes(&cx, f).await.expect("it is there").mode & 0o7_777;
        let set =
            async |name, value: &[u8], drops| fs.set_acl(&cx, f, (name, value), drops, t).await;
        let list = acl([6, 7, 5, 4, 1]);
        assert_eq!(set(ACCESS, &list, false).await, Ok(()));
        assert_eq!(mode().await, 0o641, "the group's bits are the mask");
        let change = Change { mode: Some(0o2_750), ..Change::default() };
        fs.change(&cx, f, &change, t).await.expect("it is there");
        assert_eq!(fs.xattr(&cx, f, ACCESS).await, Ok(acl([7, 7, 5, 5, 0])), "after chmod");
        fs.fsync(&cx, f, false).await.expect("it is written");
        assert_eq!(set(ACCESS, &list, false).await, Ok(()));
        assert_eq!(mode().await, 0o2_641, "a member of the group");
        assert_eq!(set(ACCESS, &list, true).await, Ok(()));
        assert_eq!(mode().await, 0o641, "who is in another group loses the set-group bit");
        assert_eq!(set(ACCESS, &minimal_acl([6, 4, 0]), false).await, Ok(()));
        assert_eq!(mode().await, 0o640);
        assert_eq!(fs.xattr(&cx, f, ACCESS).await, Err(FsError::NoAttribute), "the mode says it");
        assert_eq!(fs.remove_xattr(&cx, f, ACCESS, t).await, Ok(()), "as on other file systems");
        let no_list = set(ACCESS, &list[..30], false).await;
        assert!(matches!(no_list, Err(FsError::Invalid(_))), "{no_list:?}");
        let no_directory = set(DEFAULT, &list, false).await;
        assert!(matches!(no_directory, Err(FsError::Invalid(_))), "{no_directory:?}");
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

#[test]
fn a_directory_gives_its_default_list_to_what_is_made_in_it() {
    run(10, async |cx| {
        let device = ram(16, 10);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let dir = create(&cx, &fs, ROOT, "dir", DIR).await.ino;
        let made = async |name: &str, mode| {
            let new = New { umask: 0o077, ..new(mode) };
            fs.create(&cx, dir, name.as_bytes(), &new, t).await.expect("room")
        };
        let plain = made("plain", 0o100_666).await;
        assert_eq!(plain.mode, 0o100_600, "the umask counts where there is no list");
        let list = acl([7, 7, 5, 7, 4]);
        fs.set_acl(&cx, dir, (DEFAULT, &list), false, t).await.expect("room");
        let file = made("file", 0o100_662).await;
        assert_eq!(file.mode, 0o100_660, "no umask, and no more than the list allows");
        let sub = made("sub", 0o040_775).await;
        assert_eq!(sub.mode, 0o040_774);
        fs.fsync(&cx, file.ino, false).await.expect("it is written");
        drop(fs);
        let fs = mount(&cx, &device).await;
        let found = async |ino, name: &[u8]| fs.xattr(&cx, ino, name).await;
        assert_eq!(found(file.ino, ACCESS).await, Ok(acl([6, 7, 5, 6, 0])));
        assert_eq!(found(file.ino, DEFAULT).await, Err(FsError::NoAttribute));
        assert_eq!(found(sub.ino, ACCESS).await, Ok(acl([7, 7, 5, 7, 4])));
        assert_eq!(found(sub.ino, DEFAULT).await, Ok(list.clone()));
        // A list that a mode says gives no file one.
        let list = minimal_acl([7, 5, 0]);
        fs.set_acl(&cx, dir, (DEFAULT, &list), false, t).await.expect("room");
        let new = New { umask: 0o077, ..new(0o100_666) };
        let file = fs.create(&cx, dir, b"small", &new, t).await.expect("room");
        assert_eq!(file.mode, 0o100_640);
        assert_eq!(found(file.ino, ACCESS).await, Err(FsError::NoAttribute));
        fs.unmount(&cx).await.expect("it is written");
        sound(&cx, &device).await;
    });
}

#[test]
fn set_user_and_set_group_bits_go_with_what_others_change() {
    run(8, async |cx| {
        let device = ram(16, 8);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        let kinds = [
            ("both", FILE, 0o6_755, 0o755),
            ("a group that does not execute it", FILE, 0o6_745, 0o2_745),
            ("none", FILE, 0o755, 0o755),
            ("a directory", DIR, 0o6_755, 0o6_755),
        ];
        for (name, kind, mode, kept) in kinds {
            let f = create(&cx, &fs, ROOT, name, kind).await.ino;
            let kept = kind & 0o170_000 | kept;
            let set = Change { mode: Some(mode), ..Change::default() };
            let as_it_is = fs.change(&cx, f, &set, t).await.map(|a| a.mode);
            assert_eq!(as_it_is, Ok(kind & 0o170_000 | mode), "{name}");
            let goes = as_it_is != Ok(kept);
            assert_eq!(fs.try_has_set_ids(f), Some(Ok(goes)), "{name}");
            assert_eq!(fs.drop_set_ids(&cx, f, t).await, Ok(goes), "{name}");
            assert_eq!(fs.attributes(&cx, f).await.map(|a| a.mode), Ok(kept), "{name}");
            fs.change(&cx, f, &set, t).await.expect("it is there");
            let owner = Change { uid: Some(3), drops_set_ids: true, ..Change::default() };
            assert_eq!(fs.change(&cx, f, &owner, t).await.map(|a| a.mode), Ok(kept), "{name}");
        }
        fs.unmount(&cx).await.expect("it is written");
    });
}

#[test]
fn a_full_file_system_says_so_and_can_be_emptied() {
    run(8, async |cx| {
        let device = ram(16, 8);
        make(&cx, &device, 1).await;
        let fs = mount(&cx, &device).await;
        let t = now(&cx);
        for round in 0..3 {
            let mut made = Vec::new();
            let why = loop {
                let name = format!("f{}", made.len());
                match fs.create(&cx, ROOT, name.as_bytes(), &new(FILE), t).await {
                    Err(e) => break e,
                    Ok(f) => {
                        made.push(name);
                        if let Err(e) = fs.write(&cx, f.ino, 0, &[round; 30_000], t).await {
                            break e;
                        }
                    }
                }
            };
            assert_eq!(why, FsError::NoSpace, "round {round}");
            fs.sync(&cx).await.expect("what was taken has room");
            let space = fs.space();
            assert!(space.free < 10 && made.len() as u64 * 8 > space.pages / 2, "{space:?}");
            // Overwriting is possible in a full one.
            let f = fs.lookup(&cx, ROOT, b"f3").await.expect("it is there").ino;
            for _ in 0..20 {
                fs.write(&cx, f, 0, &[round + 100; 28_672], t).await.expect("it has its room");
                fs.fsync(&cx, f, false).await.expect("it is written");
            }
            for name in made {
                fs.unlink(&cx, ROOT, name.as_bytes(), t).await.expect("it is there");
            }
        }
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(sound(&cx, &device).await.files, 0);
    });
}
