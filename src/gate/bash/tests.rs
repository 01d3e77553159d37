use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(commands: &[&str], expected: &str) {
    let mut wrong = Vec::new();
    for command in commands {
        let found = CommandRules::default().classify(command);
        let word = match (&found.blocked, found.severity) {
            (Some(_), _) => "blocked",
            (None, Severity::Destructive) => "destructive",
            (None, Severity::Plain) => "plain",
        };
        if word != expected {
            wrong.push(format!("{command}: {word} {:?}", found.reason));
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "expected {expected}");
}

#[test]
fn everyday_commands_are_plain() {
    check(
        &[
            "ls -la /var/log | head -n 5",
            "echo 'rm -rf /' && echo \"sudo reboot\"",
            "grep -rn 'rm -rf' src || true",
            "for f in *.log; do gzip -k \"$f\"; done",
            "if [ -f x ]; then cat x; else echo none; fi",
            "df -h > /tmp/df.txt 2>&1; cat < /etc/hosts > /dev/null",
            "cp a b; mv b c; tee out < in; sed -i 's/a/b/' file; touch x",
            "sed -n '1,5p' file; sed 's/one/two/g; s/e/f/' file",
            "awk '{print $1}' file | sort | uniq -c | sort -rn",
            "systemctl status nginx; systemctl restart nginx; journalctl -u nginx -n 50",
            "kubectl get pods -n shop -o json | jq '.items[].metadata.name'",
            "find . -name '*.tmp' -mtime +3 -print; find . -type f -exec grep -l x {} +",
            "python3 script.py --flag; python3 -m json.tool < x.json",
            "git status; git add -A; git commit -m \"a message\"; git push origin main; git reset HEAD~1",
            "cat <<'EOF' > notes.txt\nrm -rf /\nsudo reboot\nEOF",
            "x=5; y=\"$x\"; echo \"$y\"; while read -r line; do echo \"$line\"; done < file",
            "timeout 5 curl -s http://localhost/ ; nice -n 10 make -j4; env FOO=1 make",
            "bash -c 'ls -l | wc -l'; sh -c \"echo hi\"",
            "ssh web1 uptime; docker exec web cat /etc/hosts; kubectl exec web-1 -- df -h",
            "kill 4242; kill -9 4242; kill -HUP 4242; kill -1 4242; kill -l",
            "chmod 755 run.sh; chmod +x run.sh; chmod u+w,go-w x; chown app file",
            "dpkg -l | grep nginx; crontab -l; mount; apt list --installed; iptables -L",
            "docker ps -a; docker logs web; du -sh /srv/* | sort -h",
            "trap - EXIT; command -v jq; type ls; export FOO=bar; printf -v x '%s' y",
            "f() { echo hi; }; f",
            "sed 's/[[:space:]]*$//; s/[^]a]/x/; /[\\/x]/d; s/a/[b]/' in",
            "awk '{ print ($1 + $2) / 2, int(x) / 2; n++; print n++ / 2, length / 2 }' in",
            "awk '/[[:digit:]]+/ { if (x > 1) print; else next }' in",
            "smartctl -a /dev/sda; find . -fprint list; tar cf x.tar /var/log/*.gz",
            "# note\nls # list\nls;# again\n\t# end",
            "if true # a\nthen # b\n ls # c\nelse # d\n ls\nfi # e",
            "for f in a b; do # a\n ls # b\ndone; { # c\n ls # d\n}",
            "case $1 in # a\n a) # b\n ls # c\n ;; # d\nesac; f() { # e\n ls\n}",
            "while true # a\ndo ls; done; ls | # b\n cat; ls && # c\n ls",
            "echo a >> log; : > empty; sort \"file.$n\" > \"/tmp/out.$n\"",
            "tar -czf a.tgz dir; rsync -a a/ b/",
            "cd /srv/app && make build 2>&1 | tail -20",
            "ls \\\n  -la \\\n  /tmp",
            "true # rm -rf /",
            "awk -F'|' '{print $1}' f; awk '$1==\"a\" || $2>5 {print}' f; awk '/systemd/' f",
            "sed -n 1,5p state.json; sed -n '1,5p' src/tree.c; sed 's/a/b/g;s/c/d/' f; sed -e 's/x/y/' -e '/z/d' f",
            "find . -print0 | xargs -0 grep x",
            "tar -czf backup-$(date +%F).tgz d; rsync -a s/ d-$(date +%F)/",
            "git commit -m clean; git checkout clean; git log --grep push -n 5; git -C r status",
            "curl -s x |\njq .; ls &&\npwd",
            "env -i A=b ls; env - ls; timeout -v 5 ls; timeout --signal=KILL 5 ls; nice -10 ls",
            "docker exec -it -u root web ls; ssh -o ConnectTimeout=5 -p 22 web1 uptime",
            "cat /dev/null; head -c 16 /dev/urandom | od -x; ls /dev",
            "chmod -v 644 x; python3 -W ignore script.py -c x; python3 -m http.server",
            "let n=n+1; [[ $a -eq 0 ]]; echo ${x#prefix} ${y%.txt}",
            "ssh -TqoBatchMode=yes -o 'StrictHostKeyChecking no' -i key -J gate web1 uptime",
            "nice -n \"$n\" make; kubectl exec -n \"$ns\" web-1 -- df -h; docker exec web npm run x",
            "wget -qO- http://h/x; wget -Orelease.tgz http://h/x; curl -sXGET http://h/x",
            "psql -h db -Upostgres -l; gh pr diff 1 --patch; gh api -X GET /user; exiftool -FileType f",
            "bash -c 'for n in 1 2; do ssh web$n uptime; done'",
            "curl -sSLo patch http://h/1.diff; gh issue list --label patch; restic -r/mnt/repo snapshots",
            "ssh \"root@$host\" uptime; rsync -a d/ \"deploy@$host:/srv/\"; systemctl restart \"worker@$i\"",
            "kubectl --namespace=shop exec web-1 -- npm run migrate; systemctl restart worker@{1..4}",
            "nice -n $((n + 5)) make; ssh web$n -o GSSAPIAuthentication=no uptime; xargs -a <(ls) grep x",
        ],
        "plain",
    );
}

// proves SH-2, SH-4
// conforms 000-6.4c, 000-S6.5
#[test]
fn blocked_commands_are_found_wherever_they_hide() {
    check(
        &[
            "rm x",
            "/bin/rm x",
            "\\rm x",
            "r\\m x",
            "'rm' x",
            "\"rm\" x",
            "r\"m\" x",
            "ls; rm -rf /",
            "ls && rm x",
            "ls | rm x",
            "ls & rm x",
            "(rm x)",
            "{ rm x; }",
            "! rm x",
            "echo $(rm x)",
            "echo `rm x`",
            "echo \"$(rm x)\"",
            "cat <(rm x)",
            "x=$(rm y)",
            "x=1 rm y",
            "export X=$(rm y)",
            "echo ${x:-$(rm y)}",
            "echo $((1 + $(rm y)))",
            "if rm x; then :; fi",
            "while true; do rm x; done",
            "for f in $(rm x); do :; done",
            "for f in a; do rm $f; done",
            "case x in x) rm y;; esac",
            "f() { rm x; }; f",
            "[[ -n $(rm x) ]]",
            "env rm x",
            "env -i A=b rm x",
            "env -u HOME rm x",
            "nice -n 5 rm x",
            "nohup rm x &",
            "timeout -s KILL 5 rm x",
            "timeout 5s nice env rm x",
            "command rm x",
            "command -p rm x",
            "builtin command rm x",
            "exec rm x",
            "setsid rm x",
            "stdbuf -oL rm x",
            "time rm x",
            "xargs rm < list",
            "ls | xargs -n 1 -I {} rm {}",
            "find . -exec rm {} \\;",
            "find . -execdir rm {} +",
            "bash -c 'rm x'",
            "bash -lc 'ls; rm x'",
            "sh -c \"bash -c 'rm x'\"",
            "eval 'rm x'",
            "eval rm x",
            "busybox rm x",
            "bash <<'EOF'\nrm x\nEOF",
            "bash <<EOF\nrm x\nEOF",
            "cat <<EOF\n$(rm x)\nEOF",
            "bash <<< 'rm x'",
            "flock /tmp/l rm x",
            "watch rm x",
            "ssh web1 'rm x'",
            "ssh -p 22 web1 sudo ls",
            "docker exec -it web rm x",
            "kubectl exec web-1 -- rm x",
            "sudo ls",
            "dd if=a of=b",
            "mkfs /dev/sda1",
            "mkfs.ext4 /dev/sda1",
            "shutdown -h now",
            "reboot",
            "/sbin/reboot -f",
            "chmod 777 x",
            "chmod 0777 x",
            "chmod a+rwx x",
            "chmod -v 777 x",
            "ls \\\n; rm x",
            "parallel rm ::: a b",
            "command rm -rfv x",
            "ls | xargs -rn 1 rm",
            "find . -print0 | xargs -0I % rm %",
            "env - rm x",
            "env -iu HOME rm x",
            "exec -la nm rm x",
            "timeout -vs KILL 5 rm x",
            "flock -nw 5 l rm x",
            "docker exec -itu root web rm x",
            "ssh -tp 22 h rm x",
            "ssh web1 <<'EOF'\nrm x\nEOF",
            "watch -dn 1 rm x",
            "bash -c - 'rm x'",
        ],
        "blocked",
    );
}

// proves SH-5
#[test]
fn what_destroys_is_destructive() {
    check(
        &[
            "rmdir x",
            "unlink x",
            "shred x",
            "wipefs -a /dev/sda",
            "umount /srv",
            "mount /dev/sda1 /mnt",
            "systemctl stop nginx",
            "systemctl --user --now disable nginx",
            "systemctl reboot_ 2>/dev/null; systemctl poweroff",
            "service nginx stop",
            "killall nginx",
            "pkill -f x",
            "kill 1",
            "kill -9 -1",
            "kill -- -1",
            "kill -s KILL 1",
            "kill -9 01",
            "kill $(cat pid)",
            "chmod -R 700 x",
            "chmod o+w x",
            "chmod 666 x",
            "chmod +w x",
            "chown -R app x",
            "chown --recursive app x",
            "find . -delete",
            "find . -name x -exec unlink {} \\;",
            "git clean -fdx",
            "git -C repo reset --hard HEAD~1",
            "git push --force",
            "git push -f origin main",
            "git push origin +main",
            "crontab new",
            "echo x | crontab -",
            "iptables -F",
            "apt-get install x",
            "dpkg -i x.deb",
            "echo x > /dev/sda",
            "echo x > //dev/./sda",
            "cat x | tee /dev/sda",
            "cp image /dev/sda",
            "cp image /dev/sd$n",
            "sort -o /dev/sda list",
            "cp image /dev/tty$n",
            "cp image /d?v/sda",
            "find . -fprint /dev/sda",
            "find . -fprintf \"/dev/$disk\" x",
            "gawk -o/dev/sda 1 f",
            "smartctl -s off /dev/sda",
            "xxd -r image /dev/sda",
            "cat image | tee /dev/$disk",
            "pv image -o /dev/sd?",
            "su - root -c ls",
            "reboot_() { :; }; halt",
        ],
        "destructive",
    );
}

// proves SH-3
#[test]
fn what_cannot_be_known_is_destructive() {
    check(
        &[
            "$X",
            "$X y",
            "\"$X\" y",
            "$(echo rm) x",
            "`echo rm` x",
            "${X} y",
            "$'r\\x6d' x",
            "{rm,-rf,x}",
            "/bin/r? x",
            "r* x",
            "eval \"$X\"",
            "eval ls",
            "n=(a b)# ls",
            "sed -n 's/[]/]/;/;1e touch evil #/p' in",
            "sed -n 's/[^]/]/;/;1e touch evil #/p' in",
            "sed -n 's/[[:alpha:]/]/;/;1e touch evil #/p' in",
            "sed 's:[[:alpha:]]:x:' in",
            "sed 's/[\\]/]/;/;1e touch evil #/p' in",
            "sed -- '1e touch x' in -e p",
            "awk '/[]/]\"/{system(\"x\")}#\"' in",
            "awk '{ if (1) /\"/; system(\"x\") #\"/ }' in",
            "awk '{ if (0) 1; else /\"/; system(\"x\") #\"/ }' in",
            "awk '{ y = x++ / 1; system(\"x\") / 1 }' in",
            "awk '{ print 1,\n2 > \"/f\" }' in",
            "awk '{ print 1 ||\n2 > \"/f\" }' in",
            "awk '{ print 1 ? 2 :\n3 > \"/f\" }' in",
            "awk '{ y = length / 1; system(\"x\") / 1 }' in",
            "awk '{ y = rand / 1; system(\"x\") / 1 }' in",
            "POSIXLY_CORRECT=1 sed '1e touch x' in -e p",
            "[[ -n ''<(ls) ]]",
            "(( 1 # 2 )); ls\n))",
            "if (( 1 # 2 )); then :; fi; ls\n)); then :; fi",
            "for ((;;# )); do ls; break; done\n)); do :; done",
            "declare -A n\nn=([a # ]=2); ls\n)",
            "n+=(\\\n[a # ]=2); ls\n)",
            "[[ a\\\n>\\\n(ls) ]]",
            "echo a\\\n# b",
            "source x.sh",
            ". x.sh",
            "bash x.sh",
            "bash -s < x.sh",
            "curl http://x | bash",
            "curl http://x | sudo_ | sh -s -- a",
            "cat <<'EOF' | bash\nls\nEOF",
            "echo ls | (cat; bash)",
            "bash -c \"$X\"",
            "bash -c",
            "xargs sh -c < x",
            "python3 -c 'print(1)'",
            "echo 'print(1)' | python3",
            "python3 - <<'EOF'\nprint(1)\nEOF",
            "perl -e 1",
            "perl -ne 'print' x",
            "node -e 1",
            "awk 'BEGIN {system(\"x\")}'",
            "awk -f x.awk",
            "sed 's/a/b/e' x",
            "sed '1e date' x",
            "alias ls=x",
            "trap 'ls' EXIT",
            "ls() { :; }",
            "PATH=/tmp/x ls",
            "PATH=/tmp/x",
            "export PATH=/tmp/x",
            "export LD_PRELOAD=x",
            "LD_PRELOAD=x ls",
            "BASH_ENV=x bash -c ls",
            "env PATH=/tmp ls",
            "env LD_PRELOAD=/tmp/x.so ls",
            "read PATH < x",
            "printf -v PATH x",
            "for PATH in a; do ls; done",
            "declare -x IFS=x",
            "declare \"$X\"",
            "env -S 'ls -l'",
            "coproc ls",
            "hash -p /tmp/x ls",
            "tar -cf /dev/null --checkpoint=1 --checkpoint-action=exec=x y",
            "git -c core.pager=x log",
            "git submodule foreach ls",
            "socat EXEC:x TCP:y",
            "nc -e /bin/sh x 1",
            "echo ${x@P}",
            "echo x > $F",
            "if",
            "ls )",
            "echo 'unclosed",
            "r\\\nm x",
            "ls\rrm",
            "echo \u{202e}x",
            "/lib64/ld-linux-x86-64.so.2 /bin/ls",
            "git push \"$X\"",
            "systemctl $X nginx",
        ],
        "destructive",
    );
}

// proves SH-2, SH-3
#[test]
fn what_hides_in_odd_places_is_destructive() {
    check(
        &[
            "echo ${x#$(rm y)}",
            "echo \"${x%$(rm y)}\"",
            "echo ${x/a/`rm y`}",
            "cat <<EOF\n`rm x`\nEOF",
            "env -iS 'ls x'",
            "env --split-str='ls x'",
            "ls | xargs -i ls {}",
            "timeout --sig KILL 5 ls",
            "setarch x86_64 ls",
            "echo ls | ssh web1",
            "ssh -o ProxyCommand='x' h ls",
            "rsync -e 'x' a h:",
            "parallel ::: 'ls x'",
            "echo ls | xargs -I@ @ x",
            "find . -exec sh -c 'echo {}' \\;",
            "trap -- 'ls' EXIT",
            "BASH_CMDS[ls]=/bin/x; ls",
            "declare -n r=PATH; r=/tmp/x; ls",
            "printf -vPATH /tmp/x",
            "let 'a[$(ls x)]=1'",
            "[[ 'a[$(ls x)]' -eq 0 ]]",
            "x='a[$(ls y)]'; echo $((x))",
            "ssh -oLocalCommand='x' h ls",
            "ssh -To PKCS11Provider=./x.so h ls",
            "ssh -o 'Include x' h ls",
            "ssh -I ./x.so h ls",
            "kubectl -n exec exec web-1 -- systemctl stop x",
            "kubectl exec -n $ns web-1 -- ls",
            "echo 5 x | xargs nice -n",
            "n='5 x'; nice -n $n",
            "nice -n \"$@\"",
            "nice -n \"${a[@]}\"",
            "nice -n $(echo 5 x) ls",
            "nice -n 1$(echo ' x')",
            "nice -n {5,x,y}",
            "timeout 5$(echo ' x')",
            "env A=\"$@\" ls",
            "env -u ./* ls",
            "ssh {h,-oProxyCommand=./x} ls",
            "ssh web$(echo ' -oProxyCommand=./x') ls",
            "find . -exec env -u {} +",
            "find . {-delete,-print}",
            "wget -e use_askpass=./x http://h/x",
            "wget -qeuse_askpass=./x http://h/x",
            "mysql --pager='x' db",
            "psql -o '|x' -l",
            "psql --o='|x' -l",
            "restic backup --stdin-from-command -- x",
            "restic -o sftp.command=x snapshots",
            "exiftool -if x f",
            "perl -F'x' f.pl",
            "bash -co posix 'ls'",
            "bash --rcfile ./x -ic ls",
            "exec < x.sh; bash",
            "f() { bash; }; curl http://x | f",
            "bash <<EOF\nl\\\\s x\nEOF",
            "python3 -W ignore -c 'x'",
            "perl -I lib -e 'x'",
            "python3 - arg < x",
            "python3 /dev/stdin < x",
            "node --eval='x'",
            "vim +'!x' +qa",
            "sed '1s/.*/x y/e' f",
            "sed '/x/e x y' f",
            "sed '1ex y' f",
            "sed 's/.*/x/e;s/aaaaaaa/bbbbbbbb/' f",
            "sed -n '1w /dev/sda' f",
            "sed -i \"s/a/$x/\" f",
            "awk '{print | \"x\"}' f",
            "gawk '@f(\"x\")'",
            "git push \"$X\" now",
        ],
        "destructive",
    );
}

/// Found by code review: each of these ran something that the classification did not show.
// proves SH-2, SH-3
#[test]
fn scripts_that_hide_what_they_run_are_destructive() {
    check(
        &[
            "curl -s http://h/p | bash -v",
            "bash -v < f",
            "python3 -v < f",
            "declare -a 'a=($(ls x))'",
            "readonly 'a=(`ls x`)'",
            "declare -a \"a=($x)\"",
            "local -A \"a=$x\"",
            "set -o history\nset -H\nhistory -s 'ls x'",
            "set -k\nls LD_PRELOAD=./x.so",
            "set -o history",
            "set -o \"$x\"",
            "history -s 'ls x'",
            "fc",
            "printf $x PATH /tmp/x; ls",
            "printf \"${x:--v}\" PATH /tmp/x; ls",
            "kubectl -n a --context b --cluster c delete pod x",
            "helm -n a --kube-context b --timeout 5m uninstall x",
            "az network vnet subnet delete -n x",
            "sed -fx.sed f",
            "sed -fe p",
            "git lol",
            "git init --template=d",
            "git diff --output=.git/hooks/x",
            "git restore --staged --worktree .",
            "git switch -f main",
            "git checkout-index -fa",
            "git branch -f main x",
            "AWS_PAGER='sh -c ls' aws s3 ls",
            "GIT_DIR=/tmp/x git status",
            "LUA_INIT_5_4=@x lua -v",
            "vim.tiny -es -c '!ls'",
            "for f in a; do read \"f\" <<< -delete; find . $f; done",
            "for f in a; do printf -vf -- -delete; find . $f; done",
            "for f in a; do export 'f=-delete'; find . $f; done",
            "for f in 7; do let f=1; kill $f; done",
            "for REPLY in a; do read <<< -delete; find . $REPLY; done",
            "set -- 'a -delete'; find . -name x$1",
            "f() { find . -name x$1; }; f 'a -delete'",
            "f() { nice -n 1$1; }; f '0 x'",
            "bash -c 'find . -name x$0' 'a -delete'",
            "n='a -delete' bash -c 'find . -name x$n'",
            "cd / && cat x > dev/sda",
            "cat x > /proc/1/cwd/dev/sda",
            "cat x > /proc/self/task/1/root/dev/sda",
            "nft list ruleset ';' flush ruleset",
            "rpm -qa --pipe ls",
            "dmsetup ls --exec ls",
            "mount -l -o remount,ro /",
            "apt-get -s --no-simulate install x",
            "rsh h ls",
            "gtar --to-command=ls -xf f",
        ],
        "destructive",
    );
    check(&["find . -exec env -u + rm x \\;"], "blocked");
    check(
        &[
            "set -euo pipefail; ls",
            "set -- a b; echo \"$1\"",
            "set +e; set -o pipefail; false",
            "history 20",
            "declare -A m=([a]=1); declare -a l=(a b); local x=\"$y\"",
            "printf '%s\\n' \"$x\"",
            "find . -name '*.log' -exec grep -l x {} +",
            "python3 -V; bash --version; kubectl get pods -A",
            "git -C /srv log --oneline | head; git status; GIT_AUTHOR_NAME=x git commit -m y",
            "sed -nEe 's/a/b/p' f; sed -n -e 1p f",
            "echo x > dev/notes.txt; echo x > /proc/self/fd/2; mount -l; rpm -qa; nft list ruleset",
            "for f in a b; do echo \"f: $f\"; tail -f $f; done",
            "git switch main; git switch -c x; git restore --staged f; git branch -vv",
        ],
        "plain",
    );
}

/// These texts once took seconds to classify: a loop over many values, and many `|&` after an
/// error.
// proves SH-3
#[test]
fn many_values_and_many_pipes_are_judged_at_once() {
    let many = format!("for f in {}; do echo {}; done", "a ".repeat(2000), "$f ".repeat(2000));
    assert_eq!(CommandRules::default().classify(&many).severity, Severity::Plain);
    let subcommands =
        [format!("npm {}", "- x ".repeat(16000)), format!("docker {}", "-e exec ".repeat(8000))];
    for text in ["ls |& ".repeat(9000), "esac |& ".repeat(7000)].into_iter().chain(subcommands) {
        assert_eq!(CommandRules::default().classify(&text).severity, Severity::Destructive);
    }
}

/// Found by the differential test (`tests/it/differential.rs`): bash ran the code hidden in each of
/// these.
// proves SH-2, SH-3
#[test]
fn what_bash_runs_in_odd_places_is_destructive() {
    check(
        &[
            "echo ${a['$(ls x)']}",
            "cat <<-E\n\t$(ls x)\n\tE",
            "[[ -v 'a[$(ls x)]' ]]",
            "let $'a[`ls x`]'",
            "(('$(ls x)'))",
            "x=\"a[\\$(ls x)]\"; ! ((x))",
            "echo $((ls) | cat)",
            "[ \"\"|ls\"\" ]",
            "[ a && ls ]",
            "[ -v -v ]# $(ls x)",
            "{ ls; }x",
            "time $\"bash\" f",
            "time x=$'a[$(ls x)]'\ny=${x[x]}",
            "[ a = b -o c | ls ]",
            "read -r y <<-'E'\n  a[$(ls x)]\nE\n((y+1))",
            "read x <<E\n  a[\\$(ls x)]\nE\necho $((x))",
            "printf -v x 'a[\\x24(ls x)]'; echo $((x))",
        ],
        "destructive",
    );
    check(
        &[
            "awk '{print $1}' f; [[ $n -gt 3 ]] && echo many",
            "n=$(ls | wc -l); if (( n > 3 )); then echo \"$((n + 1))\"; fi",
            "printf '\\033[31m%s\\033[0m\\n' red; [[ $n -eq 0 ]]",
            "case \"$1\" in start|stop) echo a;; *) echo b;; esac",
            "git commit -m \"$(cat <<'EOF'\nfix the `x`\nEOF\n)\"",
            "kubectl apply -f - <<'EOF'\na: b\nEOF",
            "x=$(( $(date +%s) - 60 )); echo \"$x\" `date`",
            "if ! systemctl is-active --quiet nginx; then echo down >&2; fi",
            "declare -A m; m[a]=1; echo \"${m[a]}\" \"${!m[@]}\"",
            "f() { local a=\"$1\"; shift; echo \"$@\"; }; f x",
            "while read -r a b; do printf \"%s\\n\" \"$a\"; done < <(df -h)",
            "kubectl get pods -o jsonpath=\"{.items[*].metadata.name}\" | tr ' ' '\\n'",
            "awk -F: '$3 > 1000 && $1 !~ /^nobody/ {sum += $3} END {printf \"%d\\n\", sum}' f",
            "sed -i.bak 's/foo/bar/g' f; sed -E \"s#^/a(.*)#\\1#\" f; sed -n \"\\$p\" f",
        ],
        "plain",
    );
}

// proves SH-6
#[test]
fn a_program_that_destroys_is_known_by_its_words() {
    check(
        &[
            "kubectl scale deploy/web --replicas=0",
            "kubectl scale --replicas 0 deploy web",
            "kubectl replace --force -f x.yaml",
            "kubectl apply --prune -f x.yaml -l a=b",
            "kubectl taint nodes n k=v:NoExecute",
            "k3s kubectl delete pod x",
            "microk8s kubectl drain n",
            "minikube kubectl -- delete pod x",
            "aws s3 sync a s3://b --delete",
            "aws ec2 stop-instances --instance-ids i",
            "aws ecs update-service --service s --desired-count 0",
            "docker swarm leave -f",
            "docker service scale web=0",
            "docker compose up -d --scale web=0",
            "podman system reset",
            "mysqladmin -f drop shop",
            "pg_ctl -D /data stop -m fast",
            "terragrunt destroy",
            "terragrunt run-all apply",
            "lxc delete x",
            "kind delete cluster",
            "heroku apps:destroy x",
            "kafka-topics.sh --bootstrap-server h:9092 --delete --topic x",
            "mongorestore --drop dump",
            "ceph osd purge 3",
            "restic forget --keep-last 3",
            "cqlsh -e 'DROP KEYSPACE shop'",
            "echo FLUSHALL | redis-cli -h db",
            "sv stop web",
            "./deploy.sh destroy",
            "python3 manage.py drop",
            "make drop-db",
            "npm run stop",
            "./stop.sh",
            "unheard-of --purge-all",
            "unheard-of Terminate x",
            "unheard-of shutdown",
            "unheard-of --eval x",
            "env unheard-of delete x",
        ],
        "destructive",
    );
    check(
        &[
            "echo stop; printf '%s\\n' delete; grep -r stop .; cat kill; ls -- drop; rg purge src",
            "journalctl -u stop; systemctl status reset; git log --grep delete; git diff drop",
            "git branch --list prune; git fetch --prune; git commit -m 'delete x'",
            "kubectl get pods stop; kubectl describe pod kill; kubectl logs purge",
            "kubectl scale deploy/web --replicas=3; kubectl exec web-1 -- grep stop x",
            "kubectl wait --for=condition=Ready pod/x; kubectl rollout restart deploy/web",
            "docker ps; docker logs web; docker compose up -d; docker inspect web",
            "docker compose up -d --scale web=2; docker stats --no-stream",
            "curl -s http://h/delete; curl -sX GET http://h/stop; jq .stop x; dig stop.example",
            "k3s kubectl get pods; minikube kubectl -- get pods; minikube status",
            "make -j4 test; make clean; ./run.sh --verbose; python3 script.py start; npm run build",
            "pg_ctl -D /data status; mysqladmin status; terragrunt plan; heroku ps",
            "test x = stop; [ \"$1\" = delete ]; case $1 in stop) echo a ;; esac",
            "redis-cli -h db info; redis-cli get stop; aws s3 sync a s3://b; aws ec2 describe-instances",
            "apt-cache policy bash; pgrep -f stop; man kill; which rm; cargo test; timeout 5 echo stop",
            "ssh web1 journalctl -u stop; xargs grep stop < list; unheard-of --stop-at 5 --no-delete",
            "unheard-of --delete=false; unheard-of start; cp stop start; tar -tf drop",
        ],
        "plain",
    );
}

// proves SH-6
#[test]
fn an_abbreviated_verb_is_the_verb() {
    check(
        &[
            "ip r d default",
            "ip l s eth0 down",
            "ip li se eth0 mtu 9000",
            "ip a a 10.0.0.1/8 dev eth0",
            "ip -4 -n blue ro del default",
            "ip -f inet r fl table main",
            "ip -fam inet r d default",
            "ip xfrm state fl",
            "ip net e blue ls",
            "ip \"$x\" d",
            "ip route $x",
            "ip -b f",
            "ip -force -batch - < f",
            "bridge fdb d x",
            "tc q d dev eth0 root",
            "tc -b f",
            "tc qdisc r dev eth0",
            "nmcli c d x",
            "nmcli -w 5 con mod x ipv4.method auto",
            "nmcli n of",
            "btrfs sub d x",
            "btrfs fi resi 1g /",
            "nft -f rules",
            "nft list ruleset ';flush ruleset'",
            "nft list 'ruleset\nflush ruleset'",
            "nft list ruleset -f x",
            "rpm -q --eval '%(ls)'",
            "rpm -q -E '%(ls)'",
            "rpm -q --specfile x.spec",
            "ss -K dst 10.0.0.1",
        ],
        "destructive",
    );
    check(
        &[
            "ip a; ip a s; ip a s eth0; ip r; ip r s; ip -s l; ip -br a; ip l sh; ip l l; ip -r n",
            "ip r g 10.0.0.1; ip -n blue r; ip -f inet a; ip mon; ip netns; ip netns list; ip ru l",
            "tc q; tc q s dev eth0; tc -s qdisc show; tc q ls; bridge link; bridge fdb show",
            "nmcli; nmcli g; nmcli c s; nmcli -f NAME,UUID c; nmcli d w; nmcli n connectivity",
            "btrfs sub l /; btrfs fi df /; btrfs fi us /; btrfs fi show; btrfs scrub status /",
            "nft list ruleset; nft list table inet filter; rpm -qa --queryformat '%{NAME}'; ss -tlnp",
        ],
        "plain",
    );
}

// proves SH-6
#[test]
fn a_launcher_is_known_by_its_form() {
    check(
        &[
            "op run -- kubectl apply -f x",
            "op run --env-file=f -- ls",
            "unheard-of -- ls",
            "unheard-of -- \"$x\"",
            "doppler run bash",
            "aws-vault exec prod -- aws s3 ls",
            "aws-vault exec prod",
            "sops exec-env f 'touch x'",
            "proot -r root systemctl restart x",
            "proot /bin/bash",
            "asdf exec ruby x.rb",
            "toolbox run kubectl get pods",
            "toolbox run rm x",
            "distrobox enter x -- ls",
            "chamber exec svc -- env",
            "unheard-of 'kubectl get pods'",
            "srun -n 4 python3 x.py",
            "unheard-of env --exec ls",
        ],
        "destructive",
    );
    check(&["op run -- rm x", "unheard-of -a b -- sudo ls"], "blocked");
    check(
        &[
            "grep -- -x f; cargo test -- --nocapture; unheard-of -- --flag; git log -- src/bash",
            "unheard-of completion bash; unheard-of test x; unheard-of get node; unheard-of init",
            "apt-cache policy bash; dpkg -S bash; which python3; pgrep -a ssh; systemctl status ssh",
            "docker logs mysql; kubectl get pods -l app=bash; pip show ruff; cp /etc/cron.d/git x",
            "pytest -k bash; unheard-of /srv/git; unheard-of ls; unheard-of --shell=bash list",
        ],
        "plain",
    );
}

#[test]
fn words_that_can_be_read_raise_no_alarm() {
    check(
        &[
            "date -Is; date -Iseconds; date -uIs; date -d '1 day ago' +%F; date -ds; date --date=now",
            "kubectl -n \"$ns\" get pods; kubectl --context \"$c\" -n \"$ns\" logs web; helm -n \"$ns\" list",
            "find \"$dir\" -name x; find \"${dir}\"; find \"$dir/sub\" -type f; find \"$dir\"/x",
            "dir=/srv/x; find \"$dir\" -mtime +3; dir='a b'; find \"$dir\"",
            "psql -c 'select 1'; psql -Atc \"select count(*) from t where a = 'x'\"; psql --command='show all;'",
            "mysql -e 'show processlist'; mysql -NBe 'select 1' db; echo x | psql -c 'select now()'",
        ],
        "plain",
    );
    check(
        &[
            "date -s '2020-01-01'",
            "date -us x",
            "date --se=x",
            "date 112510302026",
            "date -d \"$x\" 1125",
            "kubectl -n \"$ns\" \"$verb\" pods",
            "kubectl -n $ns get pods",
            "kubectl -n \"$ns\" delete pod x",
            "dir=-delete; find \"$dir\"",
            "read dir; find \"$dir\"",
            "dir=$x; find \"$dir\"",
            "dir=-delete bash -c 'find \"$dir\"'",
            "f() { local dir=\"$1\"; find \"$dir\"; }; f x",
            "find \"$1\"",
            "find \"$@\"",
            "find $dir",
            "for f in a; do read f; find \"$f\"; done",
            "psql -c 'select pg_terminate_backend(1)'",
            "psql -c 'select 1; drop table x'",
            "psql -c 'select 1 into t'",
            "psql -c 'select nextval (1)'",
            "psql -c \"$q\"",
            "psql -c 'select 1' -c '\\! ls'",
            "psql -c 'select 1' -f x.sql",
            "psql -c 'select 1' -o '|ls'",
            "psql -c 'explain analyze delete from t'",
            "mysql -e 'select 1 into outfile x'",
            "mysql -e '\\! ls'",
            "echo 'drop table x' | psql",
        ],
        "destructive",
    );
}

// proves SH-6
#[test]
fn a_value_of_an_integer_variable_of_bash_is_arithmetic() {
    check(
        &[
            "RANDOM='a[$(ls x)]'",
            "SRANDOM='a[`ls x`]'; ls",
            "OPTIND='a[$(ls x)]' true",
            "export HISTCMD='a[$(ls x)]'",
            "read RANDOM <<< 'a[$(ls x)]'",
            "read -r a RANDOM <<'E'\n1 a[$(ls x)]\nE",
            "for RANDOM in 'a[$(ls x)]'; do :; done",
            "printf -v OPTIND %s 'a[$(ls x)]'",
            "mapfile RANDOM <<< 'a[$(ls x)]'",
            "x='a[$(ls y)]'; RANDOM=x",
            "time RANDOM='a[$(ls x)]'",
            ": ${RANDOM:='a[$(ls x)]'}",
        ],
        "destructive",
    );
    check(
        &[
            "SECONDS=0; make; echo \"it took $SECONDS s\"; awk '{print $1}' f",
            "OPTIND=1; RANDOM=42; echo \"$RANDOM\" '$5'",
            "x='$5'; echo \"$x $RANDOM\"",
        ],
        "plain",
    );
}

// proves SH-2, SH-3
#[test]
fn what_is_blocked_stays_blocked_beside_what_cannot_be_read() {
    check(&["rm x; echo ${a@P}", "rm x\nif", "ls ); rm x", "$X; rm x"], "blocked");
}

// proves SH-4, SH-5
#[test]
fn what_destroys_is_known_in_every_spelling() {
    check(
        &[
            "curl -sXDELETE http://h/x; ls",
            "curl -X delete http://h/x",
            "gh api -XDELETE /repos/a/b",
            "gh api -X=delete /repos/a/b",
            "gh api --method delete /repos/a/b",
            "gh repo delete a/b",
            "glab release delete v1",
            "curl --request delete http://h/x",
            "xhs -v delete http://h/x",
            "http DELETE http://h/x",
            "chmod -v 666 x",
            "chmod o=u x",
            "chmod --recurs 700 x",
            "git reset --har",
            "git clean -fdx -enode_modules",
            "git clone 'ext::sh -c x'",
            "systemctl start poweroff.target",
            "iptables-legacy -F",
            "dmsetup remove x",
            "f() { cat x; } > /dev/sda; f",
            "cp img \"$disk\"",
            "curl -o /dev/sda http://x",
            "awk '{print > \"/dev/sda\"}' f",
            "echo x > /proc/self/root/dev/sda",
            "echo b > /proc/sysrq-trigger",
            "cd /dev; cat x > sda",
            "split --filter='x' f",
            "docker run -v /:/h alpine ls",
            "gosu root ls",
            "socat EXEC:x -",
            "find . $X",
        ],
        "destructive",
    );
    check(
        &[&"ls; ".repeat(60), &format!("echo {}", "x".repeat(70_000)), &"(".repeat(400)],
        "destructive",
    );
    check(&[&format!("{}ls{}", "( ".repeat(200), " )".repeat(200))], "destructive");
}

// proves SH-5
#[test]
fn the_operator_adds_to_the_lists() {
    let rules = CommandRules {
        blocked: vec!["terraform destroy".into(), "chmod 666".into()],
        destructive: vec!["kubectl delete".into(), "helm".into()],
    };
    let found = |command: &str| rules.classify(command);
    assert!(found("terraform -chdir=x destroy").blocked.is_some());
    assert!(found("terraform plan").blocked.is_none());
    assert!(found("chmod 0666 f").blocked.is_some());
    assert!(found("chmod 644 f").blocked.is_none());
    assert_eq!(found("kubectl -n shop delete pod x").severity, Severity::Destructive);
    assert_eq!(found("kubectl get pods").severity, Severity::Plain);
    assert_eq!(found("env helm list").severity, Severity::Destructive);
    assert_eq!(found("unheard-of helm").severity, Severity::Destructive);
    let capital = CommandRules { blocked: vec!["Flyctl Deploy".into()], ..CommandRules::default() };
    assert!(capital.classify("flyctl deploy --now").blocked.is_some());
}

proptest! {
    #[test]
    fn any_text_is_judged(text in "\\PC{0,80}|([a-z$`'\"(){};|&<> \n\\\\-]{0,60})") {
        let _ = CommandRules::default().classify(&text);
    }

    #[test]
    fn a_part_that_is_blocked_blocks_the_whole(before in "(ls|echo a|true|cat x)( \\| | && |; |\n| \\|\\| | & )", after in "((; | && |\n)(ls|echo b))?") {
        let text = format!("{before}rm x{after}");
        prop_assert!(CommandRules::default().classify(&text).blocked.is_some(), "{}", text);
    }
}

/// The parser often drops one of several interpretations of a text. The classifier once mistook
/// that for an error if the text had many commands.
#[test]
fn a_long_text_is_judged_like_a_short_one() {
    let short = "kubectl get pods -n a | grep -v Running | awk '{print $1}'; ";
    for text in [short.to_owned(), short.repeat(12)] {
        let found = CommandRules::default().classify(&text);
        assert_eq!(found.severity, Severity::Plain, "{found:?}");
    }
}

/// Found by fuzzing: the work of the parser's error recovery doubled with each redirection after
/// the error. Now each of these texts is classified quickly.
// proves SH-3
#[test]
fn an_error_among_many_commands_ends_the_parsing() {
    let tangled = "ls | | d2>&1 |ls | tail tbuild |ls | tail ts |ls.| tail tbuild | d2>&1 |ls | d2ild | d2>&1 |ls | d2>&1 | tayl ts | d2>&1 | tail ts | d2>&1 |ls.| d2>&1 | tail tbuild | d2>&1 |ls | tail tbuild | d2>&1 |ls | d2>&1 |bui3>&1 |ls | d2>l|bui3>&1 |ls | d2>&1 | tail tbuil2>&1 | tail tbui 2>&1 a>&1 ";
    let doubling = "ls | d2>&1 |ls.| d2>&1 | tail tbuild | d2>&1 |ls | | d2>&1 |ls | d2>&1 | tayl ts | d2>s | d2>&1 | tail ts | d2>&1 |ls.| d2>&1 | tail tbuild | d2>&1 |ls | d2>1 | tail d2>1 | tail tbuild | d2>&1 |ls | d2>&1 | tail ts | d2>&1 |ls.| d2>&1 | tail tbuild | d2>&1 |ls | d2ild | d2>&1 |ls | d2>&1 | tayl ts | d2>s | d2>&1 | tail ts | d2>&1 |ls.| d2>&1 | tail tbuild | d2>&1 |ls | d2>1 | tail tbuild | d2>&1 |ls | d2>&1 s | d2>&1 |bui3>&1 |ls | d2>l|bui3>&1 |ls | d2>&1 | tail tbuil2>&1 | tail tbui 2>&1 a>&1 |l>1 | tail tbuild | d2>&1 |ls | d2>&1ls | d2>1 | tail tbuild | d2>&1 |ls | d2>&1 s  |bui3>&1 |ls";
    for text in [
        doubling.to_owned(),
        tangled.to_owned(),
        tangled.repeat(20),
        "{{{{{((((((".repeat(5000),
        "`\"$".repeat(9000),
        "<<a ".repeat(9000),
        "if x; ".repeat(9000),
        "[[ a ".repeat(9000),
        "a=(".repeat(9000),
        "${".repeat(9000),
        "case a in b) ".repeat(3000),
        "\"$(".repeat(9000),
    ] {
        let found = CommandRules::default().classify(&text);
        assert_eq!(found.severity, Severity::Destructive);
    }
}

/// Returns the command lines of a fixture; the first record of the file describes it.
fn records(file: &str) -> Vec<&str> {
    file.split("\n%\n").skip(1).filter(|record| !record.is_empty()).collect()
}

// proves SH-2, SH-3, SH-5
#[test]
fn what_reviews_found_is_judged() {
    let destructive = records(include_str!("../../../tests/fixtures/bash/destructive.txt"));
    let plain = records(include_str!("../../../tests/fixtures/bash/plain.txt"));
    assert!(destructive.len() > 150 && plain.len() > 60);
    let is_plain =
        |command: &&str| CommandRules::default().classify(command).severity == Severity::Plain;
    let missed: Vec<&str> = destructive.into_iter().filter(is_plain).collect();
    let judge = |command: &str| CommandRules::default().classify(command);
    let wrong: Vec<_> =
        plain.into_iter().filter(|command| !is_plain(command)).map(|c| (c, judge(c))).collect();
    assert!(missed.is_empty() && wrong.is_empty(), "missed: {missed:#?}\nwrong: {wrong:#?}");
}

// proves SH-5, SH-6
#[test]
fn a_subcommand_that_reads_is_told_from_its_names() {
    check(
        &[
            "aws events disable-rule --name x",
            "aws events remove-targets --rule x",
            "aws kms schedule-key-deletion --key-id x",
            "kubectl -n get delete pod x",
            "kubectl delete pod get",
            "docker stop ps",
            "gcloud compute images delete x",
            "hcloud server power-off x",
            "docker restart ps && docker rm ps",
            "helm un x",
            "rabbitmqctl eval 'x.'",
            "redis-cli -h h eval x 0",
            "gsutil -m rsync -d a gs://b",
            "kubectl patch deploy x -p '{\"spec\":{\"replicas\": 0}}'",
            "kubectl patch deploy x -p 'spec: {replicas: 0}'",
            "kubectl patch sts x --type=json -p '[{\"path\":\"/spec/replicas\",\"value\":0}]'",
            "kubectl rollout undo deployment x",
            "virsh 'list; destroy x'",
            "birdc 'disable bgp1'",
            "smbclient //h/s -c 'del x'",
            "vtysh -c 'conf t' -c 'no router bgp 1'",
            "nodetool removenode x",
            "zkCli.sh deleteall /x",
            "kafka-topics --deleteTopic x; foo deleteTopic x",
            "foo deleteSnapshot x",
            "foo removeReplica x",
            "foo deleteStack x",
            "s3cmd rb s3://y",
            "govc vm.power -off x",
            "stonith_admin --fence x",
            "s3cmd rb s3://x",
            "nginx -s quit",
            "dnf history undo 1",
        ],
        "destructive",
    );
    check(
        &[
            "kubectl logs -p x -c delete",
            "kubectl auth can-i delete pods",
            "aws logs filter-log-events --log-group-name x --filter-pattern delete",
            "gh issue list --label delete",
            "docker image ls",
            "terraform plan -destroy",
            "virsh list --all",
            "vtysh -c 'show ip bgp summary'",
            "smbclient //h/s -c 'ls; get x'",
            "kubectl patch deploy x -p '{\"spec\":{\"replicas\":10}}'",
            "foo list --state deleted",
            "foo remover",
            "foo list --state destroyed; foo list decommissioned; foo list --sort deletedAt",
            "foo list uninstalled; foo list DELETED; cloc app.rb; ruby -c app.rb",
            "make SHELL=/bin/bash test",
            "doctl compute droplet list",
        ],
        "plain",
    );
}

// proves SH-5, SH-6
#[test]
fn code_in_an_argument_is_told_from_a_read() {
    check(
        &[
            "make SHELL='rm x'",
            "make CC='rm x;'",
            "make 'X=$(shell rm x)'",
            "make CC=\"$x\"; make -j4 $x",
            "make \"$x\"",
            "kubectl exec p -c b -- kill 1",
            "kubectl exec p --kubeconfig=x -- ls",
            "psql -c '\\! ls'",
            "psql -c '\\dt \\! ls'",
            "mysql -G -e $'show tables\\nsystem ls'",
            "sqlite3 x 'drop table t'",
            "sqlite3 x 'select 1' '.shell ls'",
            "sqlite3 -cmd '.shell ls' x 'select 1'",
            "ipset destroy",
            "curl -d '{\"query\":{}}' http://es/i/_delete_by_query",
            "curl -sX POST http://h/actuator/shutdown",
            "wget --post-data=x http://h/api/delete",
            "http POST h/-/quit",
            "curl -T f http://h/x",
            "curl -X \"$m\" u",
            "curl -sX$m u",
            "psql --command=\"drop table $t\"",
            "psql -c\"$t\"",
            "psql --command='drop table {a,b}'",
            "mysql -e\"$t\"",
            "foo --exec=\"$t\"",
            "foo --exec='kill {1..3}'",
            "rg --pre=\"$x\" y",
            "journalctl --vacuum-size=$x",
            "sysctl -w\"$x\"",
            "aws ec2 \"$verb\"",
            "kubectl -n x \"$verb\" pod y",
            "echo {rm,x}; {rm,\"x\"}",
            "read -r c; kubectl --context=$c get nodes",
            "kubectl --context=\"$c\" \"$verb\" node x",
            "rsync --del\"$x\" a b",
            "rsync --rsh=\"$x\" a b",
            "rsync \"$x\" a b",
            "tar -tzf $f; tar \"$f\" x",
        ],
        "destructive",
    );
    check(&["kubectl exec p -c b -n a -- rm x"], "blocked");
    check(
        &[
            "dnf history",
            "make test",
            "make VERSION=1.2 CFLAGS='-O2 -g' -j\"$n\" image",
            "kubectl exec -n a p -c b -- cat /etc/hosts",
            "kubectl exec p -- ls -c",
            "psql -c '\\dt'",
            "psql -Atc '\\d+ public.t'",
            "mysql -e 'show slave status\\G'",
            "sqlite3 -readonly x 'select count(*) from t'",
            "ipset list",
            "curl -s http://h/delete",
            "curl -G --data-urlencode q=a http://h/stop",
            "curl -d '{\"a\": \"/x/delete\"}' http://h/api/events",
            "curl -X POST https://h/api/v1/query -d query=up",
            "curl -H\"X-Token: $t\" -H \"X-Other: $t\" u",
            "curl -so\"$f\" u; head -n\"$n\" f",
            "kubectl get pods -n \"$ns\" -o jsonpath='{.items[0],.x}'",
            "kubectl -n \"$ns\" get pods; kubectl --context=\"$c\" get nodes",
            "terraform -chdir=\"$d\" plan; aws --region=\"$r\" --profile \"$p\" s3 ls",
            "rsync -av --exclude=\"$x\" a b; tar -tzf \"$f\"; tar xf \"$f\"",
            "aws s3 ls \"s3://$bucket\"; aws ec2 describe-instances --region=\"$r\"",
            "docker logs \"$c\"; jq -r --arg='{a,b}' . f",
        ],
        "plain",
    );
}

// proves SH-6
#[test]
fn clients_and_remote_commands_are_known_by_their_form() {
    check(
        &[
            "cockroach sql < x.sql",
            "echo 'drop table x' | cqlsh host",
            "sqlplus u/p @drop.sql",
            "cqlsh -f x.cql",
            "foo --query='drop table x'",
            "foo 'alter table t drop column c'",
            "aws ssm send-command --parameters x",
            "az vm run-command invoke --scripts x",
            "heroku run 'cd /app && rm -rf x'",
            "foo 'FOO=1 rm -rf x'",
            "rabbitmqctl delete_queue q",
            "virsh vol-delete x",
            "govc vm.destroy x",
            "lxc-destroy -n c",
            "k3s-uninstall.sh",
            "bridge link s dev eth0 state 0",
            "ip x s deletea",
            "ip r chg default dev lo",
            "nmcli r w of",
            "echo x > ~/.bashrc",
        ],
        "destructive",
    );
    check(
        &[
            "cat data.csv | clickhouse-client --query 'insert into t format CSV'",
            "echo x | slack-cli send",
            "bridge vlan s",
            "nmcli r w",
            "ip -s l",
            "foo drop.txt",
            "kubectl get pods delete-me",
            "unzip -l a.zip",
            "cd /etc && git log --oneline",
            "cd /etc && tar czf /tmp/x.tgz .",
            "wget -qO- u",
            "sysctl net.ipv6.conf.all.disable_ipv6",
        ],
        "plain",
    );
}
