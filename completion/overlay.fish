# fish completion for overlay: asks the command itself.
function __overlay_complete
    set --local answer (env _OVERLAY_COMPLETE=fish_complete COMP_WORDS=(commandline --cut-at-cursor --current-process) COMP_CWORD=(commandline --current-token) overlay 2>/dev/null)
    for line in $answer
        set --local parts (string split --max 1 , -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command overlay --arguments "(__overlay_complete)"
