//! Device nodes of GPU drivers: are they there, and could this user open them?

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Vendor, read_text, sorted_entries};

/// Whether this user could open a node for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Yes.
    Granted,
    /// No.
    Denied,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its path.
    pub path: PathBuf,
    /// The vendor whose driver needs it, when the name says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<Vendor>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The group's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kernel's answer, access lists included.
    pub access: Access,
}

impl Node {
    /// What is there: `mode 0660, owner 0, group render`.
    pub fn found(&self) -> String {
        let group = self.group.clone().unwrap_or_else(|| self.gid.to_string());
        format!("mode {:04o}, owner {}, group {group}", self.mode & 0o7777, self.uid)
    }

    /// What to do about a closed node.
    pub fn fix(&self) -> String {
        match &self.group {
            Some(group) if self.mode & 0o060 == 0o060 && self.gid != 0 => {
                format!("add your user to the group `{group}` and log in again")
            }
            _ => "ask the administrator for a group that may read and write it".into(),
        }
    }
}

/// The nodes that are there, by path.
pub(super) fn read(root: &Path) -> Vec<Node> {
    let groups = read_text(&root.join("etc/group")).unwrap_or_default();
    let mut nodes = Vec::new();
    let mut add = |path: PathBuf, vendor| nodes.extend(node(path, vendor, &groups));
    let devices = root.join("dev");
    for path in sorted_entries(&devices.join("dri")) {
        if name(&path).starts_with("renderD") {
            add(path, None);
        }
    }
    add(devices.join("kfd"), Some(Vendor::Amd));
    for path in sorted_entries(&devices) {
        let name = name(&path);
        let numbered = name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
        if numbered || matches!(name.as_str(), "nvidiactl" | "nvidia-uvm") {
            add(path, Some(Vendor::Nvidia));
        }
    }
    nodes
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn node(path: PathBuf, vendor: Option<Vendor>, groups: &str) -> Option<Node> {
    let metadata = std::fs::metadata(&path).ok()?;
    Some(Node {
        access: access(&path),
        vendor,
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        group: group_name(groups, metadata.gid()),
        path,
    })
}

/// The kernel's own answer, without opening the node: bits alone miss access lists, which desktop sessions use.
fn access(path: &Path) -> Access {
    let Ok(text) = CString::new(path.as_os_str().as_bytes()) else { return Access::Denied };
    // SAFETY: the string ends in NUL and outlives the call; the call opens nothing.
    let answer =
        unsafe { libc::faccessat(libc::AT_FDCWD, text.as_ptr(), libc::R_OK | libc::W_OK, libc::AT_EACCESS) };
    if answer == 0 { Access::Granted } else { Access::Denied }
}

fn group_name(groups: &str, gid: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>().ok()? == gid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::Machine;
    use super::*;

    #[test]
    fn nodes_are_found_by_name_with_their_vendor() {
        let machine = Machine::new();
        for name in ["kfd", "dri/renderD128", "dri/card0", "nvidia0", "nvidiactl", "nvidia-modeset", "null"] {
            machine.write(&format!("dev/{name}"), "");
        }
        let hardware = machine.hardware();
        let names: Vec<_> = hardware.nodes.iter().map(|node| name(&node.path)).collect();
        assert_eq!(names, ["renderD128", "kfd", "nvidia0", "nvidiactl"]);
        assert_eq!(hardware.nodes[1].vendor, Some(Vendor::Amd));
        assert!(hardware.nodes.iter().all(|node| node.access == Access::Granted));
        assert_eq!(hardware.closed_nodes(Vendor::Amd).count(), 0);
    }

    #[test]
    fn a_closed_node_names_mode_and_the_group_to_join() {
        let node = Node {
            path: "/dev/kfd".into(),
            vendor: Some(Vendor::Amd),
            mode: 0o020_660,
            uid: 0,
            gid: 992,
            group: group_name("root:x:0:\nrender:x:992:alice\n", 992),
            access: Access::Denied,
        };
        assert_eq!(node.found(), "mode 0660, owner 0, group render");
        assert!(node.fix().contains("`render`"), "{}", node.fix());
        let closed = Node { gid: 0, group: Some("root".into()), ..node };
        assert!(!closed.fix().contains("`root`"), "joining root's group is no advice");
    }
}
