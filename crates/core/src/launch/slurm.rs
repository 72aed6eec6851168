//! Lists as Slurm writes them.

/// How many tasks a node has, by its number within the step: `4`, `2(x3),1`, `4,3`.
pub(super) fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut before = 0u32;
    for part in list.split(',') {
        let (tasks, nodes) = match part.trim().split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1),
        };
        let tasks = tasks.parse().ok().filter(|&tasks| tasks > 0)?;
        before = before.checked_add(nodes)?;
        if node < before {
            return Some(tasks);
        }
    }
    None
}

/// The first host of a list: `a,b`, `node[01-04,7]`, `rack[1-2]n[3-4]`.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let Some(at) = rest.find(['[', ',']) else {
            host.push_str(rest);
            break;
        };
        host.push_str(&rest[..at]);
        if rest[at..].starts_with(',') {
            break;
        }
        let (inside, after) = rest[at + 1..].split_once(']')?;
        host.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("node[01-04,7],x", "node01"),
            ("node[7,9]", "node7"),
            ("rack[1-2]n[3-4]x", "rack1n3x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_host("node[1"), None);
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn each_node_has_its_own_number_of_tasks() {
        for (list, numbers) in [
            ("4", &[4][..]),
            ("2(x3),1", &[2, 2, 2, 1]),
            ("4,3", &[4, 3]),
            ("1(x2),3(x2)", &[1, 1, 3, 3]),
        ] {
            for (node, number) in (0..).zip(numbers) {
                assert_eq!(tasks_of_node(list, node), Some(*number), "{list} {node}");
            }
            assert_eq!(tasks_of_node(list, numbers.len() as u32), None, "{list}");
        }
        for damaged in ["", "x", "0", "2(x", "2(x3", "2(3)", "-1"] {
            assert_eq!(tasks_of_node(damaged, 0), None, "{damaged}");
        }
    }
}
